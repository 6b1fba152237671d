#include "client/normctl/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace norm::normctl {
namespace {

constexpr absl::Duration kQuietTime = absl::Milliseconds(500);
constexpr absl::Duration kInterval = absl::Milliseconds(100);
constexpr absl::Duration kLineInterval = absl::Seconds(1);
constexpr double kMebibyte = 1 << 20;

/// "[######....]": how far sending (light) and the result (dark) are.
std::string Bar(double sent, double returned) {
  constexpr int kWidth = 30;
  const int dark = static_cast<int>(kWidth * returned);
  const int light = std::max(static_cast<int>(kWidth * sent) - dark, 0);
  return absl::StrCat("[", std::string(static_cast<size_t>(dark), '#'),
                      std::string(static_cast<size_t>(light), '+'),
                      std::string(static_cast<size_t>(kWidth - dark - light), '.'), "]");
}

std::string Describe(const client::TransferProgress& progress, absl::Duration elapsed) {
  const int64_t total_bytes = progress.total_bytes.load();
  const int64_t sent_bytes = progress.sent_bytes.load();
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const double total = static_cast<double>(total_bytes) / kMebibyte;
  if (sent_bytes == 0) return absl::StrFormat("sending %.1f MiB  %.1f s", total, seconds);
  const double share = static_cast<double>(sent_bytes) / static_cast<double>(total_bytes);
  if (const double returned = progress.returned.load(); returned > 0 || sent_bytes < total_bytes) {
    return absl::StrFormat("%s sent %.1f of %.1f MiB, %d %% returned  %.1f s", Bar(share, returned),
                           static_cast<double>(sent_bytes) / kMebibyte, total,
                           static_cast<int>(100.0 * returned), seconds);
  }
  return absl::StrFormat("%.1f MiB sent, waiting for the result  %.1f s", total, seconds);
}

}  // namespace

ProgressLine::ProgressLine(Description describe, ShowProgress show)
    : describe_(std::move(describe)), terminal_(::isatty(STDERR_FILENO) == 1), start_(absl::Now()) {
  if (show == ShowProgress::kNever || (show == ShowProgress::kAuto && !terminal_)) return;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    // The work itself needs no line.
  }
}

ProgressLine::ProgressLine(std::shared_ptr<const client::TransferProgress> progress,
                           ShowProgress show)
    : ProgressLine([progress = std::move(progress)](
                       absl::Duration elapsed) { return Describe(*progress, elapsed); },
                   show) {}

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
  absl::Duration wait = terminal_ ? kQuietTime : kLineInterval;
  bool shown = false;
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, absl::ToChronoNanoseconds(wait), [this] { return stopped_; })) {
    wait = terminal_ ? kInterval : kLineInterval;
    const std::string line = describe_(absl::Now() - start_);
    std::fprintf(stderr, terminal_ ? "\r\x1b[K%s" : "%s\n", line.c_str());
    std::fflush(stderr);
    shown = true;
  }
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", describe_(absl::Now() - start_).c_str());
  } else if (shown) {
    std::fprintf(stderr, "\r\x1b[K");
  }
}

}  // namespace norm::normctl
