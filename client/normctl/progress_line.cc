#include "client/normctl/progress_line.h"

#include <unistd.h>

#include <cstdio>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace norm::normctl {
namespace {

constexpr absl::Duration kQuietTime = absl::Milliseconds(500);
constexpr absl::Duration kInterval = absl::Milliseconds(100);
constexpr double kMebibyte = 1 << 20;

std::string Describe(int64_t sent_bytes, int64_t total_bytes, absl::Duration elapsed) {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const double total = static_cast<double>(total_bytes) / kMebibyte;
  if (sent_bytes == 0) return absl::StrFormat("sending %.1f MiB  %.1f s", total, seconds);
  if (sent_bytes >= total_bytes)
    return absl::StrFormat("%.1f MiB sent, waiting for the result  %.1f s", total, seconds);
  return absl::StrFormat(
      "sending %.1f of %.1f MiB (%d %%)  %.1f s", static_cast<double>(sent_bytes) / kMebibyte,
      total,
      static_cast<int>(100.0 * static_cast<double>(sent_bytes) / static_cast<double>(total_bytes)),
      seconds);
}

}  // namespace

ProgressLine::ProgressLine(Description describe) : describe_(std::move(describe)) {
  if (::isatty(STDERR_FILENO) != 1) return;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    // The work itself needs no line.
  }
}

ProgressLine::ProgressLine(std::shared_ptr<const client::TransferProgress> progress)
    : ProgressLine([progress = std::move(progress)](absl::Duration elapsed) {
        return Describe(progress->sent_bytes.load(), progress->total_bytes.load(), elapsed);
      }) {}

ProgressLine::~ProgressLine() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stopping_.notify_one();
  thread_.join();
}

void ProgressLine::Run() {
  const absl::Time start = absl::Now();
  absl::Duration wait = kQuietTime;
  bool shown = false;
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, absl::ToChronoNanoseconds(wait), [this] { return stopped_; })) {
    wait = kInterval;
    const std::string line = describe_(absl::Now() - start);
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
    std::fflush(stderr);
    shown = true;
  }
  if (shown) std::fprintf(stderr, "\r\x1b[K");
}

}  // namespace norm::normctl
