#include "server/observability/recent_errors.h"

#include <ranges>
#include <utility>

#include "absl/strings/str_cat.h"

namespace norm::server {
namespace {

std::string Cut(absl::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  return absl::StrCat(text.substr(0, bytes - 3), "...");
}

}  // namespace

void RecentErrors::Add(absl::Time now, absl::string_view method, const absl::Status& status) {
  std::string known = Cut(method, kMethodBytes);
  const std::lock_guard lock(mutex_);
  for (RecentError& error : std::ranges::reverse_view(errors_)) {
    if (error.time <= now - absl::Seconds(1)) break;
    if (error.code == status.code() && error.method == known) {
      ++error.count;
      return;
    }
  }
  if (errors_.size() == kKept) errors_.pop_front();
  errors_.push_back(
      {now, std::move(known), status.code(), Cut(status.message(), kMessageBytes), 1});
}

std::vector<RecentError> RecentErrors::List() const {
  const std::lock_guard lock(mutex_);
  return {errors_.rbegin(), errors_.rend()};
}

}  // namespace norm::server
