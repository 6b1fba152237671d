#include "server/device/cpu_batch_executor.h"

#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/device/batch_layout.h"
#include "server/device/batch_record.h"
#include "server/device/cpu_kernel_call.h"
#include "server/device/kernel_status.h"
#include "server/scheduler/scheduler.h"

namespace norm::server {
namespace {

using SteadyClock = std::chrono::steady_clock;

absl::Duration Between(SteadyClock::time_point start, SteadyClock::time_point end) {
  return absl::FromChrono(end - start);
}

}  // namespace

CpuBatchExecutor::CpuBatchExecutor(CpuBatchExecutorOptions options, Metrics& metrics)
    : options_(std::move(options)),
      metrics_(metrics),
      pool_(HostMemory(), options_.memory_budget_bytes,
            [&metrics, index = options_.device_index](PoolUsage usage) {
              metrics.SetPinnedPool(index, usage.used_bytes, usage.free_bytes);
            }),
      kernel_threads_(options_.kernel_threads) {
  for (int i = 0; i < options_.slots; ++i) {
    idle_.push_back(std::make_unique<Scratch>());
  }
  for (int i = 0; i < options_.slots; ++i) {
    slots_.emplace_back([this] { RunSlot(); });
  }
}

CpuBatchExecutor::~CpuBatchExecutor() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_work_.notify_all();
  for (std::thread& slot : slots_) {
    slot.join();
  }
}

void CpuBatchExecutor::Start(std::unique_ptr<Batch> batch, BatchDone done) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back({std::move(batch), std::move(done)});
  }
  has_work_.notify_one();
}

int64_t CpuBatchExecutor::WorkspaceBytes(const NormProblem& problem) const {
  KernelCall call;
  MakeUnplacedCall(problem, call);
  return call.empty() ? 0 : static_cast<int64_t>(CpuWorkspaceBytes(call));
}

absl::StatusOr<JobMemory> CpuBatchExecutor::LeaseMemory(const NormProblem& problem,
                                                        int64_t input_bytes) {
  return job_memory_.Lease({input_bytes, OutputSlabBytes(problem), WorkspaceBytes(problem)});
}

void CpuBatchExecutor::Run(std::unique_ptr<Batch> batch, BatchDone done) {
  std::unique_ptr<Scratch> scratch;
  if (BytesUpTo(*batch, options_.parallel_bytes) < options_.parallel_bytes) {
    std::lock_guard lock(mutex_);
    if (queue_.empty() && idle_.size() == slots_.size()) {
      scratch = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (scratch == nullptr) {
    Start(std::move(batch), std::move(done));
  } else {
    RunWork({std::move(batch), std::move(done)}, std::move(scratch));
  }
}

void CpuBatchExecutor::RunSlot() {
  while (true) {
    Work work;
    std::unique_ptr<Scratch> scratch;
    {
      std::unique_lock lock(mutex_);
      has_work_.wait(lock, [this] { return queue_.empty() ? stopping_ : !idle_.empty(); });
      if (queue_.empty()) {
        return;
      }
      work = std::move(queue_.front());
      queue_.pop_front();
      if (stopping_ && queue_.empty()) {
        has_work_.notify_all();
      }
      scratch = std::move(idle_.back());
      idle_.pop_back();
    }
    RunWork(std::move(work), std::move(scratch));
  }
}

void CpuBatchExecutor::RunWork(Work work, std::unique_ptr<Scratch> scratch) {
  const auto start = SteadyClock::now();
  RunBatch(*work.batch, *scratch);
  metrics_.AddSlotBusy(options_.device_index, Between(start, SteadyClock::now()));
  {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(scratch));
    if (!queue_.empty()) {
      has_work_.notify_one();
    }
  }
  work.done(std::move(work.batch));
}

void CpuBatchExecutor::RunBatch(Batch& batch, Scratch& scratch) {
  absl::Status status;
  try {
    status = Compute(batch, scratch);
  } catch (const std::exception& error) {
    status = absl::InternalError(absl::StrCat("CPU batch failed: ", error.what()));
  }
  if (!status.ok()) {
    FailResults(status, batch);
  }
}

absl::Status CpuBatchExecutor::Compute(Batch& batch, Scratch& scratch) {
  BatchLayout& layout = scratch.layout;
  // What a job brings is used first, and its inputs there are read where they are.
  const JobMemory* const brought = BroughtMemory(batch);
  MakeBatchLayout(batch, brought != nullptr ? 0 : kGatherAll, layout);
  ThreadPool& threads =
      layout.problem_bytes() < options_.parallel_bytes ? scratch.own_thread : kernel_threads_;
  const auto start = SteadyClock::now();

  const Job* in_place = brought != nullptr && CheckInputSizes(*batch.jobs.front()).ok()
                            ? batch.jobs.front().get()
                            : nullptr;
  JobMemory memory = brought != nullptr ? *brought : JobMemory();
  const int64_t gathered_bytes = in_place != nullptr ? layout.gathered_bytes : layout.input_bytes;
  const auto lease = [this](int64_t bytes, std::shared_ptr<std::byte>& part) {
    auto leased = pool_.Lease(bytes);
    if (!leased.ok()) {
      return leased.status();
    }
    part = *std::move(leased);
    return absl::OkStatus();
  };
  absl::Status status;
  if (memory.inputs == nullptr || gathered_bytes > 0) {
    status = lease(gathered_bytes, memory.inputs);
  }
  if (status.ok() && memory.outputs == nullptr) {
    status = lease(layout.output_bytes, memory.outputs);
  }
  if (!status.ok()) {
    return status;
  }
  AddSegments(memory.inputs.get(), memory.outputs.get(), layout, scratch.call, in_place);
  const size_t workspace_bytes = scratch.call.empty() ? 0 : CpuWorkspaceBytes(scratch.call);
  if (workspace_bytes > 0 && memory.workspace == nullptr) {
    status = lease(static_cast<int64_t>(workspace_bytes), memory.workspace);
    if (!status.ok()) {
      return status;
    }
  }

  PlanGather(batch, layout, {.direct = in_place != nullptr}, scratch.plan);
  copied_bytes_.fetch_add(scratch.plan.gathered_bytes, std::memory_order_relaxed);
  threads.Run(static_cast<int64_t>(scratch.plan.pieces.size()), [&](int64_t i) {
    const CopyPiece& piece = scratch.plan.pieces[static_cast<size_t>(i)];
    if (!piece.direct) {
      std::memcpy(memory.inputs.get() + piece.to, piece.from.data(), piece.from.size());
    }
  });
  const auto gathered = SteadyClock::now();

  if (!scratch.call.empty()) {
    const Status run =
        RunOnCpu(scratch.call, Workspace{memory.workspace.get(), workspace_bytes}, threads);
    if (!run.ok()) {
      return ToAbslStatus(run);
    }
  }
  const BatchTimes times{Between(start, gathered), Between(gathered, SteadyClock::now()),
                         absl::ZeroDuration()};
  FillResults(layout, memory.outputs, batch);
  RecordBatch(layout, times, options_.device_index, batch, metrics_);
  return absl::OkStatus();
}

}  // namespace norm::server
