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
      pinned_(options.pinned_memory ? options.pinned_memory : PinnedMemory(),
              options.pinned_budget_bytes,
              [&metrics, index = options.device_index](PoolUsage usage) {
                metrics.SetPinnedPool(index, usage.used_bytes, usage.free_bytes);
              }),
      device_(options.device_memory ? options.device_memory : DeviceMemory(options.ordinal),
              options.device_budget_bytes,
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
    if (LaunchHere(*slot, device.status())) {
      Watch(*slot);
    }
  }
}

void CudaBatchExecutor::Run(std::unique_ptr<Batch> batch, BatchDone done) {
  if (Slot* const slot = Place(std::move(batch), std::move(done), options_.run_bytes)) {
    const cuda::DeviceGuard device(options_.ordinal);
    if (LaunchHere(*slot, device.status()) && !AwaitEnd(*slot)) {
      Watch(*slot);
    }
  }
}

CudaBatchExecutor::Slot* CudaBatchExecutor::Place(std::unique_ptr<Batch> batch, BatchDone done,
                                                  int64_t most_bytes) {
  const bool small = BytesUpTo(*batch, most_bytes) <= most_bytes;
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
    }
    (void)Launch(slot, device.status(), LeaseMode::kAllocates);
    Watch(slot);
  }
}

bool CudaBatchExecutor::LaunchHere(Slot& slot, const Status& device) {
  if (Launch(slot, device, LeaseMode::kFreeSlabOnly)) {
    return true;
  }
  std::lock_guard lock(mutex_);
  slot.assigned = true;
  slot.wakeup.notify_one();
  return false;
}

bool CudaBatchExecutor::Launch(Slot& slot, const Status& device, LeaseMode mode) {
  slot.start = SteadyClock::now();
  if (!device.ok()) {
    slot.status = Judge(device);
  } else if (!healthy()) {
    slot.status = LostError();
  } else {
    try {
      slot.status = LeaseMemory(slot, mode);
      if (slot.status.ok()) {
        const Status enqueued = slot.flight.Enqueue(*slot.work.batch);
        slot.status = enqueued.ok() ? absl::OkStatus() : Judge(enqueued);
      } else if (mode == LeaseMode::kFreeSlabOnly) {
        return false;
      } else if (const Status lost = slot.flight.Synchronize(); cuda::IsSticky(lost)) {
        // Of which an allocation may say no more than that it failed.
        slot.status = Judge(lost);
      }
    } catch (const std::exception& error) {
      slot.status = absl::InternalError(absl::StrCat("CUDA batch failed: ", error.what()));
    }
  }
  return true;
}

absl::Status CudaBatchExecutor::LeaseMemory(Slot& slot, LeaseMode mode) {
  absl::Status status = slot.flight.Prepare(*slot.work.batch, slot.alone, mode);
  if (!status.ok()) {
    return status;
  }
  auto hold = device_waitlist_.Lease([&] { return slot.flight.LeaseDeviceMemory(); },
                                     /*may_wait=*/mode == LeaseMode::kAllocates);
  if (!hold.ok()) {
    return hold.status();
  }
  slot.device_memory = *std::move(hold);
  return absl::OkStatus();
}

bool CudaBatchExecutor::AwaitEnd(Slot& slot) {
  const auto deadline = SteadyClock::now() + options_.patience;
  while (SteadyClock::now() < deadline) {
    if (!IsOver(slot)) {
      std::this_thread::yield();
    } else if (TakeResults(slot)) {
      HandBack(slot);
      return true;
    } else {
      return false;
    }
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

bool CudaBatchExecutor::IsOver(Slot& slot) {
  if (!slot.status.ok()) {
    return true;
  }
  const Result<bool> over = slot.flight.IsDone();
  if (!over.ok()) {
    slot.status = Judge(over.status());
  }
  return !over.ok() || over.value();
}

bool CudaBatchExecutor::PollSlot(Slot& slot) {
  if (!IsOver(slot)) {
    return false;
  }
  {
    std::lock_guard lock(mutex_);
    in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), &slot));
    flights_.store(in_flight_.size(), std::memory_order_release);
  }
  if (!TakeResults(slot)) {
    Fail(slot);
  }
  HandBack(slot);
  return true;
}

bool CudaBatchExecutor::TakeResults(Slot& slot) {
  if (!slot.status.ok()) {
    return false;
  }
  Batch& batch = *slot.work.batch;
  try {
    const Result<BatchTimes> times = slot.flight.Finish(batch);
    if (times.ok()) {
      RecordBatch(slot.flight.layout(), times.value(), options_.device_index, batch, metrics_);
    } else {
      slot.status = Judge(times.status());
    }
  } catch (const std::exception& error) {
    slot.status = absl::InternalError(absl::StrCat("CUDA batch failed: ", error.what()));
  }
  return slot.status.ok();
}

void CudaBatchExecutor::Fail(Slot& slot) {
  // What was enqueued before the failure may still use the memory; and a refusal may have been the
  // first sign of a poisoned context.
  const Status rest = slot.flight.Synchronize();
  if (cuda::IsSticky(rest) && healthy()) {
    slot.status = Judge(rest);
  }
  FailResults(slot.status, *slot.work.batch);
}

void CudaBatchExecutor::HandBack(Slot& slot) {
  Work work = std::move(slot.work);
  metrics_.AddSlotBusy(options_.device_index, absl::FromChrono(SteadyClock::now() - slot.start));
  slot.flight.Release();
  slot.device_memory.Reset();
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
