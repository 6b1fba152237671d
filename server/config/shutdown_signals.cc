#include "server/config/shutdown_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <ctime>

namespace norm::server {
namespace {

/// Ends the watcher thread; sent by this process to itself only.
constexpr int kStopWatching = SIGUSR1;

sigset_t ShutdownSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

ShutdownSignals::ShutdownSignals() {
  sigset_t set = ShutdownSet();
  sigaddset(&set, kStopWatching);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

ShutdownSignals::~ShutdownSignals() {
  if (!watcher_.joinable()) return;
  pthread_kill(watcher_.native_handle(), kStopWatching);
  watcher_.join();
}

std::optional<int> ShutdownSignals::Wait(absl::Duration timeout) {
  const sigset_t set = ShutdownSet();
  const timespec wait = absl::ToTimespec(timeout);
  const int signal = sigtimedwait(&set, nullptr, &wait);
  if (signal < 0) return std::nullopt;
  return signal;
}

void ShutdownSignals::ExitOnNext() {
  watcher_ = std::thread([] {
    sigset_t set = ShutdownSet();
    sigaddset(&set, kStopWatching);
    int signal = 0;
    if (sigwait(&set, &signal) == 0 && signal != kStopWatching) _exit(128 + signal);
  });
}

}  // namespace norm::server
