// Batches whose memory is not there yet, or not to be had.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <mutex>
#include <new>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "server/device/cuda_batch_executor.h"
#include "server/device/cuda_memory.h"
#include "tests/unit/server/device/oracle_check.h"

namespace norm::server {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

/// Another source, seen through, and what a test does before it is asked.
class SeenSource {
 public:
  using Hook = std::function<absl::Status(int64_t bytes)>;

  explicit SeenSource(MemorySource source) : source_(std::move(source)) {}

  void Set(Hook hook) {
    std::lock_guard lock(mutex_);
    hook_ = std::move(hook);
    callers_.clear();
  }
  /// The threads that asked since Set.
  std::set<std::thread::id> callers() const {
    std::lock_guard lock(mutex_);
    return callers_;
  }
  MemorySource Source() {
    return [this](int64_t bytes) -> absl::StatusOr<std::shared_ptr<std::byte>> {
      Hook hook;
      {
        std::lock_guard lock(mutex_);
        callers_.insert(std::this_thread::get_id());
        hook = hook_;
      }
      const absl::Status status = hook ? hook(bytes) : absl::OkStatus();
      return status.ok() ? source_(bytes) : status;
    };
  }

 private:
  const MemorySource source_;
  mutable std::mutex mutex_;
  Hook hook_ ABSL_GUARDED_BY(mutex_);
  std::set<std::thread::id> callers_ ABSL_GUARDED_BY(mutex_);
};

struct End {
  JobResult result;
  std::thread::id thread;  // that called `done`
};

class CudaExecutorMemoryTest : public testing::Test {
 protected:
  /// Batches of any size are staged, and launched by the thread that brings them if that can be; no
  /// memory is made beforehand but what the warm-up takes.
  void Make(int64_t device_budget_bytes) {
    CudaBatchExecutorOptions options;
    options.device_budget_bytes = device_budget_bytes;
    options.prewarm_bytes = 0;
    options.inline_bytes = int64_t{1} << 30;
    options.run_bytes = int64_t{1} << 30;
    options.ways.mapped_bytes = 0;
    options.ways.mapped_output_bytes = 0;
    options.pinned_memory = pinned_.Source();
    options.device_memory = device_.Source();
    auto created = CudaBatchExecutor::Create(options, metrics_);
    ASSERT_TRUE(created.ok()) << created.status();
    executor_ = *std::move(created);
  }

  using Entry = void (CudaBatchExecutor::*)(std::unique_ptr<Batch>, BatchExecutor::BatchDone);
  std::future<End> Enter(Entry entry, const test::ProblemInputs& inputs) {
    auto batch = std::make_unique<Batch>();
    batch->jobs.push_back(test::BuilderFor(inputs).Build(nullptr));
    std::promise<End> promise;
    std::future<End> end = promise.get_future();
    ((*executor_).*entry)(
        std::move(batch), [promise = std::move(promise)](std::unique_ptr<Batch> done) mutable {
          promise.set_value({std::move(done->results.at(0)), std::this_thread::get_id()});
        });
    return end;
  }
  absl::StatusCode Start(const test::ProblemInputs& inputs) {
    const End end = Enter(&CudaBatchExecutor::Start, inputs).get();
    if (end.result.status.ok()) test::ExpectMatchesOracle(inputs, end.result);
    return end.result.status.code();
  }

  SeenSource pinned_{PinnedMemory()};
  SeenSource device_{DeviceMemory(0)};
  Metrics metrics_{{"device"}, BatchCloseReasonNames()};
  std::unique_ptr<CudaBatchExecutor> executor_;
};

TEST_F(CudaExecutorMemoryTest, AnAllocationThatThrowsEndsItsBatchAlone) {
  Make(16 * kMib);
  const test::ProblemInputs fits = test::RandomInputs(test::RmsNormProblem(1024, 1024), 1);
  const test::ProblemInputs too_large = test::RandomInputs(test::RmsNormProblem(2048, 1536), 2);
  for (const int call : {1, 2}) {
    int calls = 0;
    device_.Set([&](int64_t) {
      if (++calls == call) throw std::bad_alloc();
      return absl::OkStatus();
    });
    EXPECT_EQ(Start(fits), absl::StatusCode::kInternal);
    EXPECT_EQ(executor_->device_usage().used_bytes, 0);
    device_.Set(nullptr);
    // Nobody holds any: it ends instead of waiting for what that batch never had.
    EXPECT_EQ(Start(too_large), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Start(fits), absl::StatusCode::kOk);
    EXPECT_EQ(Start(too_large), absl::StatusCode::kUnavailable);  // frees the slabs of `fits`
  }
  EXPECT_TRUE(executor_->healthy());
}

TEST_F(CudaExecutorMemoryTest, RunLeavesAllocationsToOtherThreads) {
  const test::ProblemInputs inputs = test::RandomInputs(test::RmsNormProblem(2048, 1024), 1);
  for (const Entry entry : {&CudaBatchExecutor::Run, &CudaBatchExecutor::Start}) {
    // Nothing of this size has been leased before.
    Make(int64_t{1} << 30);
    pinned_.Set(nullptr);
    device_.Set(nullptr);
    test::ExpectMatchesOracle(inputs, Enter(entry, inputs).get().result);
    for (const SeenSource* source : {&pinned_, &device_}) {
      EXPECT_FALSE(source->callers().empty());
      EXPECT_FALSE(source->callers().contains(std::this_thread::get_id()));
    }
    pinned_.Set(nullptr);
    test::ExpectMatchesOracle(inputs, Enter(entry, inputs).get().result);
    EXPECT_TRUE(pinned_.callers().empty());
  }
}

TEST_F(CudaExecutorMemoryTest, WhatFailsEndsOnAThreadOfTheExecutor) {
  Make(int64_t{1} << 30);
  pinned_.Set([](int64_t) { return absl::ResourceExhaustedError("no more"); });
  const test::ProblemInputs inputs = test::RandomInputs(test::RmsNormProblem(2048, 1024), 1);
  const End end = Enter(&CudaBatchExecutor::Run, inputs).get();
  EXPECT_EQ(end.result.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(end.thread, std::this_thread::get_id());
  pinned_.Set(nullptr);
  EXPECT_EQ(Start(inputs), absl::StatusCode::kOk);
}

TEST_F(CudaExecutorMemoryTest, NobodyStandsBehindTheSlowAllocationOfOneThatWaited) {
  Make(16 * kMib);
  const test::ProblemInputs first = test::RandomInputs(test::RmsNormProblem(1024, 1024), 1);
  const test::ProblemInputs second = test::RandomInputs(test::RmsNormProblem(1536, 1024), 2);
  const test::ProblemInputs small = test::RandomInputs(test::RmsNormProblem(2, 5), 3);
  ASSERT_EQ(Start(small), absl::StatusCode::kOk);
  struct Gate {
    int64_t bytes;
    std::promise<void> entered;
    std::promise<void> opened;
  };
  // The outputs of each, which are leased after the inputs.
  Gate gates[] = {{4 * kMib, {}, {}}, {6 * kMib, {}, {}}};
  device_.Set([&](int64_t bytes) {
    for (Gate& gate : gates) {
      if (bytes != gate.bytes) continue;
      gate.entered.set_value();
      gate.opened.get_future().wait();
    }
    return absl::OkStatus();
  });
  auto first_end = Enter(&CudaBatchExecutor::Start, first);
  gates[0].entered.get_future().wait();
  // Beside the 9 MiB of the first there is room for its inputs, not for its outputs.
  auto second_end = Enter(&CudaBatchExecutor::Start, second);
  while (executor_->waiting_for_device_memory() == 0) std::this_thread::yield();
  gates[0].opened.set_value();
  gates[1].entered.get_future().wait();
  EXPECT_EQ(Start(small), absl::StatusCode::kOk);
  gates[1].opened.set_value();
  test::ExpectMatchesOracle(first, first_end.get().result);
  test::ExpectMatchesOracle(second, second_end.get().result);
}

}  // namespace
}  // namespace norm::server
