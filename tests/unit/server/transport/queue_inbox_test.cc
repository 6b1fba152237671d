#include "server/transport/queue_inbox.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/completion_queue.h"
#include "server/transport/queue_poller.h"

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
  std::thread thread_{[this] { PollQueue(queue_, inbox_); }};
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
    turns.Add(&events.emplace_back(flow, name, &order), true);
  };
  add(1, "a1");
  add(1, "a2");
  add(1, "a3");
  add(2, "b1");
  turns.CompleteNext();
  add(3, "c1");
  add(2, "b2");
  while (!turns.empty()) turns.CompleteNext();
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
