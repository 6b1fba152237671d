#include "answer_threads.h"

#include <system_error>
#include <utility>

namespace norm::client {
namespace {

/// One reads while others wake callers; more of them gain nothing on 16 cores.
constexpr int kThreads = 4;

}  // namespace

std::shared_ptr<AnswerThreads> AnswerThreads::OfProcess() {
  static std::mutex mutex;
  static std::weak_ptr<AnswerThreads> existing;
  const std::lock_guard lock(mutex);
  std::shared_ptr<AnswerThreads> threads = existing.lock();
  if (threads == nullptr) existing = threads = std::make_shared<AnswerThreads>();
  return threads;
}

AnswerThreads::~AnswerThreads() {
  queue_.Shutdown();
  const std::lock_guard lock(mutex_);
  if (threads_.empty()) Run();  // a queue must be emptied before it goes
  for (std::thread& thread : threads_) thread.join();
}

void AnswerThreads::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) static_cast<absl::Notification*>(tag)->Notify();
}

bool AnswerThreads::Running() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(started_, true)) {
    try {
      for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error&) {
      // Those that could be started do; without one, every call goes on polling.
    }
  }
  return !threads_.empty();
}

AnswerThreads::Call::Call(AnswerThreads& threads) : threads_(threads) {
  if (threads.polling_.fetch_add(1, std::memory_order_relaxed) < kPollingCalls ||
      !threads.Running()) {
    own_.emplace();
    return;
  }
  threads.polling_.fetch_sub(1, std::memory_order_relaxed);
}

AnswerThreads::Call::~Call() {
  if (!own_.has_value()) return;
  threads_.polling_.fetch_sub(1, std::memory_order_relaxed);
  own_->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (own_->Next(&tag, &ok)) {
  }
}

void AnswerThreads::Call::Wait() {
  if (!own_.has_value()) {
    answered_.WaitForNotification();
    return;
  }
  void* tag = nullptr;
  bool ok = false;
  own_->Next(&tag, &ok);
}

}  // namespace norm::client
