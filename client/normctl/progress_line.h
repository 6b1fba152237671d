// A line on the terminal while a transfer takes long.
#pragma once

#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "norm/client/options.h"

namespace norm::normctl {

/// Shows bytes sent and time passed on stderr, from half a second after construction until
/// destruction, which clears the line. Does nothing when stderr is no terminal.
class ProgressLine {
 public:
  explicit ProgressLine(std::shared_ptr<const client::TransferProgress> progress);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

 private:
  void Run();

  const std::shared_ptr<const client::TransferProgress> progress_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace norm::normctl
