#include "server/transport/call.h"

namespace norm::server {

Call::Call(LiveCalls& live) : live_(live) { live_.Add(); }
Call::~Call() { live_.Remove(); }

void LiveCalls::Add() {
  absl::MutexLock lock(&mutex_);
  ++calls_;
}

void LiveCalls::Remove() {
  absl::MutexLock lock(&mutex_);
  --calls_;
}

void LiveCalls::AwaitNone() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](int64_t* calls) { return *calls == 0; }, &calls_));
}

void LiveCalls::AddListener(StopListener* listener) {
  absl::MutexLock lock(&stop_mutex_);
  if (stopping()) {
    listener->OnStop();
  } else {
    listeners_.insert(listener);
  }
}

void LiveCalls::RemoveListener(StopListener* listener) {
  absl::MutexLock lock(&stop_mutex_);
  listeners_.erase(listener);
}

void LiveCalls::Stop() {
  absl::MutexLock lock(&stop_mutex_);
  stopping_.store(true, std::memory_order_release);
  // OnStop runs under the mutex: a stream cannot be deleted meanwhile, since its destructor waits
  // in RemoveListener.
  for (StopListener* listener : listeners_) listener->OnStop();
  listeners_.clear();
}

}  // namespace norm::server
