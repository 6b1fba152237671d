#include "server/observability/gpu_poller.h"

#include <utility>

namespace norm::server {

using std::chrono::steady_clock;

GpuPoller::GpuPoller(std::string uuid, std::function<GpuReading()> read, absl::Duration interval)
    : uuid_(std::move(uuid)),
      read_(std::move(read)),
      interval_(absl::ToChronoNanoseconds(interval)),
      read_at_(steady_clock::now()),
      thread_([this] { Poll(); }) {}

GpuPoller::~GpuPoller() {
  Stop();
  thread_.join();
}

GpuPoller::Last GpuPoller::last() const {
  const std::lock_guard lock(mutex_);
  return {reading_, absl::FromChrono(steady_clock::now() - read_at_)};
}

void GpuPoller::Stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

bool GpuPoller::AwaitStopped(steady_clock::time_point end) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, end, [this] { return stopped_; });
}

void GpuPoller::Poll() {
  std::unique_lock lock(mutex_);
  do {
    lock.unlock();
    const GpuReading reading = read_();
    lock.lock();
    reading_ = reading;
    read_at_ = steady_clock::now();
  } while (!changed_.wait_for(lock, interval_, [this] { return stop_; }));
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace norm::server
