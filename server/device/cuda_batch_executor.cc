#include "server/device/cuda_batch_executor.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "norm/cuda/cuda_status.h"
#include "norm/cuda/device_guard.h"
#include "server/device/batch_record.h"
#include "server/device/cuda_error_kind.h"
#include "server/device/cuda_kernel_call.h"
#include "server/device/cuda_memory.h"
#include "server/device/cuda_warm_up.h"
#include "server/device/kernel_status.h"
#include "server/scheduler/scheduler.h"

namespace norm::server {
namespace {

// Polls without result before the completion thread sleeps between them.
constexpr int kEagerPolls = 200;
constexpr std::chrono::microseconds kPollInterval(20);

using SteadyClock = std::chrono::steady_clock;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBatchExecutor>> CudaBatchExecutor::Create(
    const CudaBatchExecutorOptions& options, Metrics& metrics) {
  auto executor = std::unique_ptr<CudaBatchExecutor>(new CudaBatchExecutor(options, metrics));
  for (int i = 0; i < options.slots; ++i) {
    Result<CudaSlot> slot = CudaSlot::Create(options.ordinal);
    if (!slot.ok()) {
      return ToAbslStatus(slot.status());
    }
    executor->slots_.push_back(std::make_unique<Slot>(
        std::move(slot).value(), CudaFlightResources{executor->pinned_, executor->device_,
                                                     executor->copier_, options.ways}));
  }
  // An input and an output for each slot.
  executor->pinned_.Prewarm(options.prewarm_bytes, 2 * options.slots);
  executor->device_.Prewarm(options.prewarm_bytes, 2 * options.slots);
  for (const auto& slot : executor->slots_) {
    const cuda::DeviceGuard device(options.ordinal);
    const Status warm = device.status().ok() ? WarmUp(slot->flight) : device.status();
    if (!warm.ok()) {
      return ToAbslStatus(warm);
    }
  }
  executor->warm_up_copied_bytes_ = executor->copier_.copied_bytes();
  for (const auto& slot : executor->slots_) {
    executor->idle_.push_back(slot.get());
  }
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
              }),
      copier_(options.copy_helpers) {}

CudaBatchExecutor::~CudaBatchExecutor() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    WakeAll();
  }
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
  if (Slot* const slot = Place(std::move(batch), std::move(done), options_.inline_bytes)) {
    const cuda::DeviceGuard device(options_.ordinal);
    LaunchWork(*slot, device.status());
    Watch(*slot);
  }
}

void CudaBatchExecutor::Run(std::unique_ptr<Batch> batch, BatchDone done) {
  if (Slot* const slot = Place(std::move(batch), std::move(done), options_.run_bytes)) {
    const cuda::DeviceGuard device(options_.ordinal);
    LaunchWork(*slot, device.status());
    if (!AwaitEnd(*slot)) {
      Watch(*slot);
    }
  }
}

CudaBatchExecutor::Slot* CudaBatchExecutor::Place(std::unique_ptr<Batch> batch, BatchDone done,
                                                  int64_t most_bytes) {
  // Who brings memory must not end for want of device memory, and so may have to wait.
  const bool small =
      BytesUpTo(*batch, most_bytes) <= most_bytes && BroughtMemory(*batch) == nullptr;
  std::lock_guard lock(mutex_);
  if (idle_.empty()) {
    queue_.push_back({std::move(batch), std::move(done)});
    return nullptr;
  }
  // The last one to become idle: what it touches is warm.
  Slot* const slot = idle_.back();
  idle_.pop_back();
  Assign(*slot, {std::move(batch), std::move(done)});
  // Beside other batches the caller had better bring more meanwhile.
  if (small && slot->alone) {
    slot->assigned = false;
    return slot;
  }
  slot->wakeup.notify_one();
  return nullptr;
}

void CudaBatchExecutor::Assign(Slot& slot, Work work) {
  slot.work = std::move(work);
  slot.assigned = true;
  slot.alone = idle_.size() + 1 == slots_.size();
}

void CudaBatchExecutor::RunSlot(Slot& slot) {
  const cuda::DeviceGuard device(options_.ordinal);
  while (true) {
    {
      std::unique_lock lock(mutex_);
      // Queued batches go to the slots that become free, this one among them.
      slot.wakeup.wait(lock, [&] { return slot.assigned || (stopping_ && queue_.empty()); });
      if (!slot.assigned) {
        return;
      }
      slot.assigned = false;
      slot.may_wait = true;
    }
    LaunchWork(slot, device.status());
    Watch(slot);
  }
}

void CudaBatchExecutor::LaunchWork(Slot& slot, const Status& device) {
  slot.start = SteadyClock::now();
  if (!device.ok()) {
    slot.launched = Judge(device);
  } else if (!healthy()) {
    slot.launched = LostError();
  } else {
    try {
      slot.launched = Launch(slot);
    } catch (const std::exception& error) {
      slot.launched = absl::InternalError(absl::StrCat("CUDA batch failed: ", error.what()));
    }
  }
}

bool CudaBatchExecutor::AwaitEnd(Slot& slot) {
  const auto deadline = SteadyClock::now() + options_.patience;
  while (SteadyClock::now() < deadline) {
    const Result<bool> over = IsOver(slot);
    if (!over.ok() || over.value()) {
      End(slot, over.status());
      return true;
    }
    std::this_thread::yield();
  }
  return false;
}

void CudaBatchExecutor::Watch(Slot& slot) {
  {
    std::lock_guard lock(mutex_);
    in_flight_.push_back(&slot);
    flights_.store(in_flight_.size(), std::memory_order_release);
  }
  flight_changed_.notify_one();
}

absl::Status CudaBatchExecutor::Launch(Slot& slot) {
  const Batch& batch = *slot.work.batch;
  absl::Status memory = slot.flight.Prepare(batch, slot.alone);
  if (memory.ok()) {
    memory = LeaseDeviceMemory(slot);
  }
  if (!memory.ok()) {
    return memory;
  }
  const Status status = slot.flight.Enqueue(batch);
  return status.ok() ? absl::OkStatus() : Judge(status);
}

absl::Status CudaBatchExecutor::LeaseDeviceMemory(Slot& slot) {
  {
    std::lock_guard lock(memory_mutex_);
    ++memory_holders_;
  }
  absl::Status status = slot.flight.LeaseDeviceMemory();
  slot.has_device_memory = status.ok();
  if (status.ok()) {
    return status;
  }
  std::unique_lock lock(memory_mutex_);
  EndHolding();
  // Those that hold memory are in flight and end by themselves. Whoever waits has none: a part of
  // what it needs could be what another waits for.
  while (absl::IsUnavailable(status) && slot.may_wait) {
    status = slot.flight.LeaseDeviceMemory();
    if (!absl::IsUnavailable(status) || memory_holders_ == 0) {
      break;
    }
    const int64_t seen = memory_releases_;
    while (memory_releases_ == seen) {
      memory_released_.wait(lock);
    }
  }
  slot.has_device_memory = status.ok();
  memory_holders_ += slot.has_device_memory ? 1 : 0;
  return status;
}

void CudaBatchExecutor::EndHolding() {
  --memory_holders_;
  ++memory_releases_;
  memory_released_.notify_all();
}

void CudaBatchExecutor::ReleaseMemory(Slot& slot) {
  slot.flight.Release();
  if (std::exchange(slot.has_device_memory, false)) {
    std::lock_guard lock(memory_mutex_);
    EndHolding();
  }
}

int64_t CudaBatchExecutor::WorkspaceBytes(const NormProblem& problem) const {
  const cuda::DeviceGuard device(options_.ordinal);
  KernelCall call;
  MakeUnplacedCall(problem, call);
  return call.empty() || !device.status().ok() ? 0 : static_cast<int64_t>(CudaWorkspaceBytes(call));
}

void CudaBatchExecutor::RunCompletions() {
  const cuda::DeviceGuard device(options_.ordinal);
  std::vector<Slot*> flights;
  auto last_end = SteadyClock::now();
  int idle_polls = 0;
  while (true) {
    while (flights_.load(std::memory_order_acquire) == 0 &&
           SteadyClock::now() - last_end < options_.completion_spin) {
      std::this_thread::yield();
    }
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
      last_end = SteadyClock::now();
    } else if (++idle_polls < kEagerPolls) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
}

Result<bool> CudaBatchExecutor::IsOver(const Slot& slot) const {
  return slot.launched.ok() ? slot.flight.IsDone() : Result<bool>(true);
}

bool CudaBatchExecutor::PollSlot(Slot& slot) {
  const Result<bool> over = IsOver(slot);
  if (over.ok() && !over.value()) {
    return false;
  }
  {
    std::lock_guard lock(mutex_);
    in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), &slot));
    flights_.store(in_flight_.size(), std::memory_order_release);
  }
  End(slot, over.status());
  return true;
}

void CudaBatchExecutor::End(Slot& slot, const Status& over) {
  if (!slot.launched.ok()) {
    Fail(slot, slot.launched);
  } else if (over.ok()) {
    Succeed(slot);
  } else {
    Fail(slot, Judge(over));
  }
}

void CudaBatchExecutor::Succeed(Slot& slot) {
  Batch& batch = *slot.work.batch;
  try {
    const Result<BatchTimes> times = slot.flight.Finish(batch);
    if (!times.ok()) {
      Fail(slot, Judge(times.status()));
      return;
    }
    RecordBatch(slot.flight.layout(), times.value(), options_.device_index, batch, metrics_);
  } catch (const std::exception& error) {
    Fail(slot, absl::InternalError(absl::StrCat("CUDA batch failed: ", error.what())));
    return;
  }
  HandBack(slot);
}

void CudaBatchExecutor::Fail(Slot& slot, absl::Status status) {
  // What was enqueued before the failure may still use the memory; and a refusal may have been the
  // first sign of a poisoned context.
  const Status rest = slot.flight.Synchronize();
  if (cuda::IsSticky(rest) && healthy()) {
    status = Judge(rest);
  }
  FailResults(status, *slot.work.batch);
  HandBack(slot);
}

void CudaBatchExecutor::HandBack(Slot& slot) {
  Work work = std::move(slot.work);
  metrics_.AddSlotBusy(options_.device_index, absl::FromChrono(SteadyClock::now() - slot.start));
  ReleaseMemory(slot);
  slot.may_wait = false;
  {
    std::lock_guard lock(mutex_);
    if (queue_.empty()) {
      idle_.push_back(&slot);
    } else {
      Assign(slot, std::move(queue_.front()));
      queue_.pop_front();
      slot.wakeup.notify_one();
      if (stopping_ && queue_.empty()) {
        WakeAll();
      }
    }
  }
  work.done(std::move(work.batch));
}

void CudaBatchExecutor::WakeAll() {
  for (const auto& slot : slots_) {
    slot->wakeup.notify_one();
  }
}

absl::Status CudaBatchExecutor::Judge(const Status& status) {
  const bool sticky = cuda::IsSticky(status);
  if (status.code() == StatusCode::kCuda || status.code() == StatusCode::kOutOfMemory) {
    metrics_.RecordCudaError(CudaErrorKindOf(status));
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
