#include "client/normctl/load_progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace norm::normctl {

void LoadProgress::Begin(std::string label, absl::Duration warm_up, absl::Duration duration) {
  const std::lock_guard lock(mutex_);
  label_ = std::move(label);
  begun_ = absl::Now();
  warm_up_ = warm_up;
  duration_ = duration;
}

std::string LoadProgress::Describe(absl::Time now) {
  const int64_t completed = completed_.load(std::memory_order_relaxed);
  const absl::Duration since = now - described_at_;
  const double rate =
      since == absl::InfiniteDuration() || since <= absl::ZeroDuration()
          ? 0
          : static_cast<double>(completed - described_completed_) / absl::ToDoubleSeconds(since);
  described_completed_ = completed;
  described_at_ = now;

  const std::lock_guard lock(mutex_);
  if (begun_ == absl::InfinitePast()) return label_;
  const absl::Duration passed = now - begun_;
  const bool warming = passed < warm_up_;
  const absl::Duration total = warming ? warm_up_ : duration_;
  const absl::Duration shown =
      std::clamp(warming ? passed : passed - warm_up_, absl::ZeroDuration(), total);
  return absl::StrFormat("%s: %s %.1f of %.1f s, %.0f requests/s, %d errors", label_,
                         warming ? "warm-up" : "measuring", absl::ToDoubleSeconds(shown),
                         absl::ToDoubleSeconds(total), rate,
                         failed_.load(std::memory_order_relaxed));
}

}  // namespace norm::normctl
