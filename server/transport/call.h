// What every call on the data path has: a lifetime bound to its pending completion-queue events.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"

namespace norm::server {

/// A completion-queue tag. The thread that polls the queue calls Complete once for each time the
/// tag was handed to gRPC.
class CompletionEvent {
 public:
  virtual ~CompletionEvent() = default;
  virtual void Complete(bool ok) = 0;
  /// Whose event it is: those of equal flow are completed in order, flows in turn (EventTurns). Asked
  /// by the queue's thread.
  virtual uint64_t flow() = 0;
};

class LiveCalls;

/// A call, armed or in progress. Deleted with its last reference: one per event that gRPC still
/// owes, one per job in flight.
///
/// Threads:  Ref, TryRef and Unref from any; Ref by who holds a reference already.
class Call {
 public:
  explicit Call(LiveCalls& live);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Releases, and Acquire acquires: an event's handler sees what the thread that handed out its
  /// tag had written. gRPC promises that too, but ThreadSanitizer cannot see it inside an
  /// uninstrumented library.
  void Ref() { references_.fetch_add(1, std::memory_order_release); }
  void Acquire() const { (void)references_.load(std::memory_order_acquire); }
  /// For who holds none: false once the last has gone and the call is being deleted.
  bool TryRef() {
    int64_t count = references_.load(std::memory_order_relaxed);
    while (count > 0) {
      if (references_.compare_exchange_weak(count, count + 1, std::memory_order_acq_rel)) {
        return true;
      }
    }
    return false;
  }
  void Unref() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 protected:
  virtual ~Call();

  /// A client's call has come; until then it was only armed. Once, before anything else is done.
  void Begin();

 private:
  LiveCalls& live_;
  bool in_progress_ = false;
  std::atomic<int64_t> references_{0};
};

/// An event that ends in a member function of the call, which it keeps alive while gRPC holds the
/// tag.
template <typename CallType>
class CallEvent final : public CompletionEvent {
 public:
  using Handler = void (CallType::*)(bool ok);
  CallEvent(CallType* call, Handler handler) : call_(call), handler_(handler) {}

  /// The event, with a reference to its call: completed once for each time that it was taken.
  CompletionEvent* Event() {
    call_->Ref();
    return this;
  }
  /// The same for who holds no reference to the call; null once it is being deleted.
  CompletionEvent* TryEvent() { return call_->TryRef() ? this : nullptr; }
  /// The tag to hand to gRPC, once per operation.
  void* Tag() { return Event(); }
  /// Takes back a tag that gRPC will never return.
  void Drop() { call_->Unref(); }

  uint64_t flow() override { return call_->flow(); }
  void Complete(bool ok) override {
    CallType* call = call_;
    call->Acquire();
    (call->*handler_)(ok);
    call->Unref();
  }

 private:
  CallType* call_;
  Handler handler_;
};

/// Something that wants to know when the server stops taking work (open streams).
class StopListener {
 public:
  /// On the thread that stops the server. A call may be in its destructor, waiting in RemoveListener.
  virtual void OnStop() = 0;

 protected:
  ~StopListener() = default;
};

/// Counts calls, so that completion queues close only after the last one, and reaches open streams.
class LiveCalls {
 public:
  void Add() ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove() ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitNone() ABSL_LOCKS_EXCLUDED(mutex_);

  /// Counts calls in progress that came before Stop; true when this one did. Calls that come later
  /// are refused, and drain does not wait for them.
  bool BeginOne() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndOne() ABSL_LOCKS_EXCLUDED(mutex_);
  /// False when some are still in progress at `deadline`.
  bool AwaitIdle(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  /// OnStop is called on the listener at most once, at once when the server is already stopping.
  /// `RemoveListener` returns when no call of OnStop is running; it must not be called from OnStop.
  void AddListener(StopListener* listener) ABSL_LOCKS_EXCLUDED(stop_mutex_);
  void RemoveListener(StopListener* listener) ABSL_LOCKS_EXCLUDED(stop_mutex_);
  void Stop() ABSL_LOCKS_EXCLUDED(stop_mutex_);
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }

 private:
  std::mutex mutex_;
  std::condition_variable none_left_;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::condition_variable idle_;
  int64_t in_progress_ ABSL_GUARDED_BY(mutex_) = 0;

  std::mutex stop_mutex_;
  absl::flat_hash_set<StopListener*> listeners_ ABSL_GUARDED_BY(stop_mutex_);
  std::atomic<bool> stopping_{false};
};

}  // namespace norm::server
