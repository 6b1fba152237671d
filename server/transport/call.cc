#include "server/transport/call.h"

#include "server/scheduler/brief_lock.h"

namespace norm::server {

Call::Call(LiveCalls& live) : live_(live) { live_.Add(); }
Call::~Call() {
  if (in_progress_) live_.EndOne();
  live_.Remove();
}

void Call::Begin() { in_progress_ = live_.BeginOne(); }

void LiveCalls::Add() {
  const BriefLock lock(mutex_);
  ++calls_;
}

void LiveCalls::Remove() {
  const BriefLock lock(mutex_);
  if (--calls_ == 0) none_left_.notify_all();
}

void LiveCalls::AwaitNone() {
  std::unique_lock lock(mutex_);
  none_left_.wait(lock, [this] { return calls_ == 0; });
}

bool LiveCalls::BeginOne() {
  const BriefLock lock(mutex_);
  if (stopping()) return false;
  ++in_progress_;
  return true;
}

void LiveCalls::EndOne() {
  const BriefLock lock(mutex_);
  if (--in_progress_ == 0) idle_.notify_all();
}

bool LiveCalls::AwaitIdle(absl::Time deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, absl::ToChronoTime(deadline), [this] { return in_progress_ == 0; });
}

void LiveCalls::AddListener(StopListener* listener) {
  const std::lock_guard lock(stop_mutex_);
  if (stopping()) {
    listener->OnStop();
  } else {
    listeners_.insert(listener);
  }
}

void LiveCalls::RemoveListener(StopListener* listener) {
  const std::lock_guard lock(stop_mutex_);
  listeners_.erase(listener);
}

void LiveCalls::Stop() {
  const std::lock_guard lock(stop_mutex_);
  stopping_.store(true, std::memory_order_release);
  // OnStop runs under the mutex: a stream cannot be deleted meanwhile, since its destructor waits
  // in RemoveListener.
  for (StopListener* listener : listeners_) listener->OnStop();
  listeners_.clear();
}

}  // namespace norm::server
