#include "server/transport/queue_inbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/support/time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/completion_queue.h"
#include "server/transport/queue_poller.h"

namespace norm::server {
namespace {

/// A queue with its inbox and its threads, as the server has them. The inbox goes after the threads.
class PolledQueue {
 public:
  explicit PolledQueue(int threads = 1) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { PollQueue(queue_, inbox_); });
  }
  ~PolledQueue() {
    queue_.Shutdown();
    for (std::thread& thread : threads_) thread.join();
  }
  grpc::CompletionQueue& queue() { return queue_; }
  QueueInbox& inbox() { return inbox_; }
  std::thread::id thread_id() const { return threads_.front().get_id(); }

 private:
  grpc::CompletionQueue queue_;
  QueueInbox inbox_{queue_};
  std::vector<std::thread> threads_;
};

/// Notes where and in which order it was completed.
struct NotingEvent final : CompletionEvent {
  uint64_t flow() override { return 0; }
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
    uint64_t flow() override { return 0; }
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

/// Notes its name, after it has waited for `before`.
struct NamedEvent final : CompletionEvent {
  NamedEvent(uint64_t whose, std::string text, std::vector<std::string>* names)
      : owner(whose), name(std::move(text)), order(names) {}
  uint64_t flow() override { return owner; }
  void Complete(bool) override {
    if (begun != nullptr) begun->set_value();
    if (before.valid()) before.wait();
    order->push_back(name);
    if (last != nullptr) last->set_value();
  }
  const uint64_t owner;
  const std::string name;
  std::vector<std::string>* const order;
  std::promise<void>* begun = nullptr;
  std::shared_future<void> before;
  std::promise<void>* last = nullptr;
};

TEST(EventTurnsTest, FlowsTakeTurnsAndEachKeepsItsOrder) {
  std::vector<std::string> order;
  std::deque<NamedEvent> events;
  EventTurns turns;
  const auto add = [&](uint64_t flow, const std::string& name) {
    turns.Add({&events.emplace_back(flow, name, &order), true}, flow);
  };
  const auto complete_next = [&] {
    const std::optional<EventTurns::Event> next = turns.Take();
    if (next.has_value()) next->event->Complete(next->ok);
    return next.has_value();
  };
  EXPECT_FALSE(complete_next());
  add(1, "a1");
  add(1, "a2");
  add(1, "a3");
  add(2, "b1");
  EXPECT_TRUE(complete_next());
  add(3, "c1");
  add(2, "b2");
  while (complete_next()) {
  }
  EXPECT_EQ(order, (std::vector<std::string>{"a1", "b1", "a2", "c1", "b2", "a3"}));
}

TEST(QueueInboxTest, WhatWaitsForTheThreadIsTakenInTurnsOfFlows) {
  std::vector<std::string> order;
  std::promise<void> begun;
  std::promise<void> go;
  std::promise<void> last;
  NamedEvent first(1, "first", &order);
  first.begun = &begun;
  first.before = go.get_future().share();
  std::deque<NamedEvent> flood;
  for (int i = 0; i < 3; ++i) flood.emplace_back(1, absl::StrCat("flood", i), &order);
  flood.back().last = &last;
  NamedEvent other(2, "other", &order);
  PolledQueue polled;
  polled.inbox().Post(&first);
  begun.get_future().wait();
  for (NamedEvent& event : flood) polled.inbox().Post(&event);
  polled.inbox().Post(&other);
  go.set_value();
  last.get_future().wait();
  EXPECT_EQ(order, (std::vector<std::string>{"first", "flood0", "other", "flood1", "flood2"}));
}

/// Tells that it has been completed.
struct TellingEvent final : CompletionEvent {
  uint64_t flow() override { return 1; }
  void Complete(bool ok) override {
    EXPECT_TRUE(ok);
    done.set_value();
  }
  bool Awaited() {
    return done.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  }
  std::promise<void> done;
};

TEST(QueueInboxTest, AnEventThatKeepsOneThreadWaitsForNoOther) {
  std::vector<std::string> order;
  std::promise<void> begun;
  std::promise<void> go;
  NamedEvent slow(1, "slow", &order);
  slow.begun = &begun;
  slow.before = go.get_future().share();
  TellingEvent posted;
  TellingEvent of_the_queue;
  grpc::Alarm alarm;
  PolledQueue polled(2);
  polled.inbox().Post(&slow);
  begun.get_future().wait();
  polled.inbox().Post(&posted);
  EXPECT_TRUE(posted.Awaited());
  alarm.Set(&polled.queue(), gpr_time_0(GPR_CLOCK_MONOTONIC), &of_the_queue);
  EXPECT_TRUE(of_the_queue.Awaited());
  EXPECT_TRUE(order.empty());
  go.set_value();
}

TEST(QueueInboxTest, SeveralThreadsCompleteEveryEventOnce) {
  constexpr int kPosters = 4;
  constexpr int kEvents = 2000;
  struct CountingEvent final : CompletionEvent {
    uint64_t flow() override { return owner; }
    void Complete(bool) override {
      times.fetch_add(1);
      if (left->fetch_sub(1) == 1) all_done->set_value();
    }
    uint64_t owner = 0;
    std::atomic<int> times{0};
    std::atomic<int>* left = nullptr;
    std::promise<void>* all_done = nullptr;
  };
  std::atomic<int> left{kPosters * kEvents};
  std::promise<void> all_done;
  std::deque<CountingEvent> events(kPosters * kEvents);
  for (size_t i = 0; i < events.size(); ++i) {
    events[i].owner = i / kEvents;
    events[i].left = &left;
    events[i].all_done = &all_done;
  }
  {
    PolledQueue polled(3);
    std::vector<std::thread> posters;
    for (int poster = 0; poster < kPosters; ++poster) {
      posters.emplace_back([&, poster] {
        for (int i = 0; i < kEvents; ++i)
          polled.inbox().Post(&events[static_cast<size_t>(poster * kEvents + i)]);
      });
    }
    for (std::thread& poster : posters) poster.join();
    ASSERT_EQ(all_done.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }
  for (const CountingEvent& event : events) EXPECT_EQ(event.times.load(), 1);
}

TEST(QueueInboxTest, AThreadThatSleepsIsWokenEachTime) {
  std::vector<std::string> order;
  PolledQueue polled;
  for (int i = 0; i < 200; ++i) {
    std::promise<void> done;
    NamedEvent event(1, "x", &order);
    event.last = &done;
    polled.inbox().Post(&event);
    ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  }
}

}  // namespace
}  // namespace norm::server
