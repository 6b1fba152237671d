// A line on the terminal while something takes long.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "norm/client/options.h"

namespace norm::normctl {

/// Shows a description on stderr, ten times a second from half a second after construction until
/// destruction, which clears the line. Does nothing when stderr is no terminal, or where no thread
/// can be started.
class ProgressLine {
 public:
  /// Called on the line's own thread with the time since construction.
  using Description = std::function<std::string(absl::Duration elapsed)>;
  explicit ProgressLine(Description describe);
  /// Bytes sent, and time passed.
  explicit ProgressLine(std::shared_ptr<const client::TransferProgress> progress);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

 private:
  void Run();

  const Description describe_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace norm::normctl
