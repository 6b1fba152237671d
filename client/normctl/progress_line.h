// A line on the terminal while something takes long.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "norm/client/options.h"

namespace norm::normctl {

/// kAuto: where stderr is a terminal. kAlways: also elsewhere, in lines of their own.
enum class ShowProgress : uint8_t { kAuto, kAlways, kNever };

/// Shows a description on stderr, ten times a second from half a second after construction until
/// destruction, which clears the line. Where stderr is no terminal it does nothing, or with kAlways
/// writes a line each second and a last one at destruction. Does nothing where no thread can be
/// started.
class ProgressLine {
 public:
  /// Called on the line's own thread with the time since construction, and at destruction.
  using Description = std::function<std::string(absl::Duration elapsed)>;
  explicit ProgressLine(Description describe, ShowProgress show = ShowProgress::kAuto);
  /// Bytes sent and returned, and time passed.
  ProgressLine(std::shared_ptr<const client::TransferProgress> progress, ShowProgress show);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

 private:
  void Run();

  const Description describe_;
  bool terminal_ = false;
  absl::Time start_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace norm::normctl
