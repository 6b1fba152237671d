#include "server/transport/queue_inbox.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/completion_queue.h"

namespace norm::server {
namespace {

/// A queue with its thread, as the server has them.
class PolledQueue {
 public:
  ~PolledQueue() {
    queue_.Shutdown();
    thread_.join();
  }
  QueueInbox& inbox() { return inbox_; }
  std::thread::id thread_id() const { return thread_.get_id(); }

 private:
  grpc::CompletionQueue queue_;
  QueueInbox inbox_{queue_};
  std::thread thread_{[this] {
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) static_cast<CompletionEvent*>(tag)->Complete(ok);
  }};
};

/// Notes where and in which order it was completed.
struct NotingEvent final : CompletionEvent {
  void Complete(bool ok) override {
    EXPECT_TRUE(ok);
    thread = std::this_thread::get_id();
    order->push_back(number);
    left->DecrementCount();
  }
  int number = 0;
  std::thread::id thread;
  std::vector<int>* order = nullptr;
  absl::BlockingCounter* left = nullptr;
};

TEST(QueueInboxTest, EveryEventIsCompletedOnceOnTheQueuesThreadAndInOrder) {
  constexpr int kPosters = 4;
  constexpr int kEvents = 2000;
  PolledQueue polled;
  QueueInbox& inbox = polled.inbox();
  absl::BlockingCounter left(kPosters * kEvents);
  std::vector<int> order;  // of the queue's thread alone
  std::vector<NotingEvent> events(kPosters * kEvents);
  for (int i = 0; i < kPosters * kEvents; ++i) {
    events[static_cast<size_t>(i)].number = i;
    events[static_cast<size_t>(i)].order = &order;
    events[static_cast<size_t>(i)].left = &left;
  }
  std::vector<std::thread> posters;
  for (int poster = 0; poster < kPosters; ++poster) {
    posters.emplace_back([&, poster] {
      for (int i = 0; i < kEvents; ++i)
        inbox.Post(&events[static_cast<size_t>(poster * kEvents + i)]);
    });
  }
  for (std::thread& poster : posters) poster.join();
  left.Wait();
  ASSERT_EQ(order.size(), events.size());
  std::vector<int> next(kPosters, 0);
  for (const int number : order) EXPECT_EQ(number % kEvents, next[number / kEvents]++);
  for (const NotingEvent& event : events) EXPECT_EQ(event.thread, polled.thread_id());
}

TEST(QueueInboxTest, AnEventMayPostAnother) {
  struct Chain final : CompletionEvent {
    void Complete(bool) override {
      if (--left > 0) {
        inbox->Post(this);
      } else {
        done.Notify();
      }
    }
    QueueInbox* inbox = nullptr;
    int left = 100;
    absl::Notification done;
  };
  PolledQueue polled;
  QueueInbox& inbox = polled.inbox();
  Chain chain;
  chain.inbox = &inbox;
  inbox.Post(&chain);
  EXPECT_TRUE(chain.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(chain.left, 0);
}

}  // namespace
}  // namespace norm::server
