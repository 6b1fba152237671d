#include "server/device/cuda_batch_executor.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "norm/cuda/cuda_status.h"
#include "norm/cuda/device_guard.h"
#include "server/device/batch_record.h"
#include "server/device/cuda_kernel_call.h"
#include "server/device/cuda_memory.h"
#include "server/device/kernel_status.h"
#include "server/scheduler/scheduler.h"

namespace norm::server {
namespace {

// Gathered bytes that are worth a copy of their own: 2 MiB take about 0.2 ms to gather and 40 us to
// copy, against 3 us to enqueue.
constexpr int64_t kCopyChunkBytes = int64_t{2} << 20;
// Slabs up to this size are there before the first request: two of each power of two per slot.
constexpr int64_t kPrewarmedBytes = int64_t{1} << 20;
// Polls without result before the completion thread sleeps between them.
constexpr int kEagerPolls = 200;
constexpr std::chrono::microseconds kPollInterval(20);

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBatchExecutor>> CudaBatchExecutor::Create(
    const CudaBatchExecutorOptions& options, Metrics& metrics) {
  auto executor = std::unique_ptr<CudaBatchExecutor>(new CudaBatchExecutor(options, metrics));
  for (int i = 0; i < options.slots; ++i) {
    Result<CudaSlot> slot = CudaSlot::Create(options.ordinal);
    if (!slot.ok()) {
      return ToAbslStatus(slot.status());
    }
    executor->slots_.push_back(std::make_unique<Slot>(std::move(slot).value()));
  }
  // An input and an output for each slot.
  executor->pinned_.Prewarm(kPrewarmedBytes, 2 * options.slots);
  executor->device_.Prewarm(kPrewarmedBytes, 2 * options.slots);
  for (const auto& slot : executor->slots_) {
    executor->slot_threads_.emplace_back(
        [self = executor.get(), slot = slot.get()] { self->RunSlot(*slot); });
  }
  executor->completion_thread_ = std::thread([self = executor.get()] { self->RunCompletions(); });
  return executor;
}

CudaBatchExecutor::CudaBatchExecutor(const CudaBatchExecutorOptions& options, Metrics& metrics)
    : options_(options),
      metrics_(metrics),
      pinned_(PinnedMemory(), options.pinned_budget_bytes,
              [&metrics, index = options.device_index](PoolUsage usage) {
                metrics.SetPinnedPool(index, usage.used_bytes, usage.free_bytes);
              }),
      device_(DeviceMemory(options.ordinal), options.device_budget_bytes,
              [&metrics, index = options.device_index](PoolUsage usage) {
                metrics.SetDevicePool(index, usage.used_bytes, usage.free_bytes);
              }) {}

CudaBatchExecutor::~CudaBatchExecutor() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_changed_.notify_all();
  for (std::thread& thread : slot_threads_) {
    thread.join();
  }
  // Only now: the slots' threads may still have put batches in flight.
  {
    std::lock_guard lock(mutex_);
    completions_stopping_ = true;
  }
  flight_changed_.notify_all();
  if (completion_thread_.joinable()) {
    completion_thread_.join();
  }
}

void CudaBatchExecutor::Start(std::unique_ptr<Batch> batch, BatchDone done) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back({std::move(batch), std::move(done)});
  }
  // All: a slot whose batch is still in flight cannot take this one.
  work_changed_.notify_all();
}

void CudaBatchExecutor::RunSlot(Slot& slot) {
  const cuda::DeviceGuard device(options_.ordinal);
  while (true) {
    {
      std::unique_lock lock(mutex_);
      work_changed_.wait(
          lock, [&] { return (!queue_.empty() && !slot.busy) || (queue_.empty() && stopping_); });
      if (queue_.empty()) {
        return;
      }
      slot.flight.work = std::move(queue_.front());
      queue_.pop_front();
      slot.busy = true;
    }
    slot.flight.start = std::chrono::steady_clock::now();
    absl::Status status;
    if (!device.status().ok()) {
      status = Judge(device.status());
    } else if (!healthy()) {
      status = LostError();
    } else {
      try {
        status = Enqueue(slot);
      } catch (const std::exception& error) {
        status = absl::InternalError(absl::StrCat("CUDA batch failed: ", error.what()));
      }
    }
    if (!status.ok()) {
      Fail(slot, std::move(status));
      continue;
    }
    {
      std::lock_guard lock(mutex_);
      in_flight_.push_back(&slot);
    }
    flight_changed_.notify_one();
  }
}

absl::Status CudaBatchExecutor::Enqueue(Slot& slot) {
  Flight& flight = slot.flight;
  MakeBatchLayout(*flight.work.batch, flight.layout);
  if (absl::Status status = LeaseMemory(flight); !status.ok()) {
    return status;
  }
  AddSegments(flight.device_input.get(), flight.device_output.get(), flight.layout, flight.call);
  const size_t workspace_bytes = flight.call.empty() ? 0 : CudaWorkspaceBytes(flight.call);
  if (workspace_bytes > 0) {
    auto workspace = device_.Lease(static_cast<int64_t>(workspace_bytes));
    if (!workspace.ok()) {
      return workspace.status();
    }
    flight.device_workspace = *std::move(workspace);
  }
  const Status status = [&]() -> Status {
    NORM_RETURN_IF_ERROR(GatherAndCopyIn(slot));
    NORM_RETURN_IF_ERROR(slot.cuda.BeginCompute());
    if (!flight.call.empty()) {
      NORM_RETURN_IF_ERROR(EnqueueOnCuda(
          flight.call, {flight.device_workspace.get(), workspace_bytes}, slot.cuda.compute()));
    }
    NORM_RETURN_IF_ERROR(slot.cuda.BeginCopyOut());
    NORM_RETURN_IF_ERROR(CopyOut(slot));
    return slot.cuda.End();
  }();
  return status.ok() ? absl::OkStatus() : Judge(status);
}

absl::Status CudaBatchExecutor::LeaseMemory(Flight& flight) {
  struct Want {
    BufferPool& pool;
    int64_t bytes;
    std::shared_ptr<std::byte>& lease;
  };
  const Want wants[] = {
      {pinned_, flight.layout.input_bytes, flight.pinned_input},
      {pinned_, flight.layout.output_bytes, flight.pinned_output},
      {device_, flight.layout.input_bytes, flight.device_input},
      {device_, flight.layout.output_bytes, flight.device_output},
  };
  for (const Want& want : wants) {
    auto lease = want.pool.Lease(want.bytes);
    if (!lease.ok()) {
      return lease.status();
    }
    want.lease = *std::move(lease);
  }
  return absl::OkStatus();
}

Status CudaBatchExecutor::GatherAndCopyIn(Slot& slot) {
  Flight& flight = slot.flight;
  NORM_RETURN_IF_ERROR(slot.cuda.BeginCopyIn());
  std::byte* const pinned = flight.pinned_input.get();
  std::byte* const device = flight.device_input.get();
  int64_t copied = 0;
  const auto copy_up_to = [&](int64_t end) {
    const int64_t start = std::exchange(copied, end);
    return slot.cuda.CopyIn(device + start, pinned + start, static_cast<size_t>(end - start));
  };
  PlanGather(*flight.work.batch, flight.layout, flight.pieces);
  for (const CopyPiece& piece : flight.pieces) {
    std::memcpy(pinned + piece.to, piece.from.data(), piece.from.size());
    const int64_t end = piece.to + static_cast<int64_t>(piece.from.size());
    if (end - copied >= kCopyChunkBytes) {
      NORM_RETURN_IF_ERROR(copy_up_to(end));
    }
  }
  return copied < flight.layout.input_bytes ? copy_up_to(flight.layout.input_bytes) : Status();
}

Status CudaBatchExecutor::CopyOut(Slot& slot) {
  const Flight& flight = slot.flight;
  return slot.cuda.CopyOut(flight.pinned_output.get(), flight.device_output.get(),
                           static_cast<size_t>(flight.layout.output_bytes));
}

void CudaBatchExecutor::RunCompletions() {
  const cuda::DeviceGuard device(options_.ordinal);
  std::vector<Slot*> flights;
  int idle_polls = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      flight_changed_.wait(lock, [&] { return !in_flight_.empty() || completions_stopping_; });
      if (in_flight_.empty()) {
        return;
      }
      flights = in_flight_;
    }
    bool any_done = false;
    for (Slot* slot : flights) {
      any_done |= PollSlot(*slot);
    }
    if (any_done) {
      idle_polls = 0;
    } else if (++idle_polls < kEagerPolls) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
}

bool CudaBatchExecutor::PollSlot(Slot& slot) {
  const Result<bool> done = slot.cuda.IsDone();
  if (done.ok() && !done.value()) {
    return false;
  }
  {
    std::lock_guard lock(mutex_);
    in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), &slot));
  }
  if (done.ok()) {
    Succeed(slot);
  } else {
    Fail(slot, Judge(done.status()));
  }
  return true;
}

void CudaBatchExecutor::Succeed(Slot& slot) {
  Flight& flight = slot.flight;
  const Result<BatchTimes> times = slot.cuda.Times();
  if (!times.ok()) {
    Fail(slot, Judge(times.status()));
    return;
  }
  try {
    FillResults(flight.layout, flight.pinned_output, *flight.work.batch);
    RecordBatch(flight.layout, times.value(), options_.device_index, *flight.work.batch, metrics_);
  } catch (const std::exception& error) {
    Fail(slot, absl::InternalError(absl::StrCat("CUDA batch failed: ", error.what())));
    return;
  }
  HandBack(slot);
}

void CudaBatchExecutor::Fail(Slot& slot, absl::Status status) {
  // What was enqueued before the failure may still use the memory; and a refusal may have been the
  // first sign of a poisoned context.
  const Status rest = slot.cuda.Synchronize();
  if (cuda::IsSticky(rest) && healthy()) {
    status = Judge(rest);
  }
  FailResults(status, *slot.flight.work.batch);
  HandBack(slot);
}

void CudaBatchExecutor::Flight::Release() {
  for (auto* memory :
       {&pinned_input, &pinned_output, &device_input, &device_output, &device_workspace}) {
    memory->reset();
  }
}

void CudaBatchExecutor::HandBack(Slot& slot) {
  Work work = std::move(slot.flight.work);
  metrics_.AddSlotBusy(options_.device_index,
                       absl::FromChrono(std::chrono::steady_clock::now() - slot.flight.start));
  slot.flight.Release();
  {
    std::lock_guard lock(mutex_);
    slot.busy = false;
  }
  work_changed_.notify_all();
  work.done(std::move(work.batch));
}

absl::Status CudaBatchExecutor::Judge(const Status& status) {
  const bool sticky = cuda::IsSticky(status);
  if (status.code() == StatusCode::kCuda || status.code() == StatusCode::kOutOfMemory) {
    metrics_.RecordCudaError(sticky);
  }
  if (sticky && lost_.exchange(true)) {
    return LostError();
  }
  return ToAbslStatus(status);
}

absl::Status CudaBatchExecutor::LostError() const {
  return WithRetryAfter(
      absl::UnavailableError(absl::StrCat(options_.device_name, " is lost after a CUDA error")),
      absl::Seconds(1));
}

}  // namespace norm::server
