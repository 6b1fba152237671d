// SIGTERM and SIGINT as values instead of handlers.
#pragma once

#include <optional>
#include <thread>

#include "absl/time/time.h"

namespace norm::server {

/// Blocks SIGTERM and SIGINT in the calling thread and in all threads it starts afterwards: to be
/// made first in main.
class ShutdownSignals {
 public:
  ShutdownSignals();
  ~ShutdownSignals();
  ShutdownSignals(const ShutdownSignals&) = delete;
  ShutdownSignals& operator=(const ShutdownSignals&) = delete;

  /// The signal, when one arrives within `timeout`.
  std::optional<int> Wait(absl::Duration timeout);

  /// From now on the next signal n ends the process at once with exit code 128 + n.
  void ExitOnNext();

 private:
  std::thread watcher_;
};

}  // namespace norm::server
