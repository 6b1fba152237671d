#include "server/transport/queue_inbox.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "grpcpp/completion_queue.h"

namespace norm::server {
namespace {

/// A queue with its inbox and its thread, as the server has them. The inbox goes after the thread.
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
    if (--*left == 0) all_done->set_value();
  }
  int number = 0;
  std::thread::id thread;
  std::vector<int>* order = nullptr;
  int* left = nullptr;
  std::promise<void>* all_done = nullptr;
};

TEST(QueueInboxTest, EveryEventIsCompletedOnceOnTheQueuesThreadAndInOrder) {
  constexpr int kPosters = 4;
  constexpr int kEvents = 2000;
  PolledQueue polled;
  // Of the queue's thread, until all are done.
  std::vector<int> order;
  int left = kPosters * kEvents;
  std::promise<void> all_done;
  std::vector<NotingEvent> events(kPosters * kEvents);
  for (int i = 0; i < kPosters * kEvents; ++i) {
    NotingEvent& event = events[static_cast<size_t>(i)];
    event.number = i;
    event.order = &order;
    event.left = &left;
    event.all_done = &all_done;
  }
  std::vector<std::thread> posters;
  for (int poster = 0; poster < kPosters; ++poster) {
    posters.emplace_back([&, poster] {
      for (int i = 0; i < kEvents; ++i)
        polled.inbox().Post(&events[static_cast<size_t>(poster * kEvents + i)]);
    });
  }
  for (std::thread& poster : posters) poster.join();
  ASSERT_EQ(all_done.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
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
        done.set_value();
      }
    }
    QueueInbox* inbox = nullptr;
    int left = 100;
    std::promise<void> done;
  };
  Chain chain;
  PolledQueue polled;
  chain.inbox = &polled.inbox();
  std::future<void> done = chain.done.get_future();
  polled.inbox().Post(&chain);
  ASSERT_EQ(done.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(chain.left, 0);
}

}  // namespace
}  // namespace norm::server
