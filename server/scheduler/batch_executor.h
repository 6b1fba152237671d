// What the scheduler asks of a device: run a batch, say when it is done.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/scheduler/job.h"

namespace norm::server {

/// Why a batch stopped growing.
enum class BatchCloseReason : uint8_t {
  kSlotFree,  // an executor slot was free: everything compatible goes now
  kRows,      // max_batch_rows reached
  kBytes,     // max_batch_bytes reached
  kSegments,  // kMaxBatchSegments reached
  kSingle,    // the job is so large that it travels alone
  kDelay,     // jobs gathered for max_queue_delay, and a slot was free
};
inline constexpr int kBatchCloseReasonCount = 6;

/// "slot_free", "rows", "bytes", "segments", "single", "delay": the label values of
/// batch_close_total.
const char* BatchCloseReasonName(BatchCloseReason reason);
std::vector<std::string> BatchCloseReasonNames();

/// Jobs that share one launch (equal BatchKey), those of one segment side by side: one job, or
/// mergeable jobs that are equal in all but their rows (equal SegmentKey). Never empty.
struct Batch {
  std::vector<std::unique_ptr<Job>> jobs;
  /// How many of them each segment has, in order. Empty: all of them are one segment.
  std::vector<int64_t> segment_jobs;
  BatchCloseReason reason = BatchCloseReason::kSingle;
  absl::Time started;              // set by the scheduler when it hands the batch over
  std::vector<JobResult> results;  // filled by the executor, one per job, in order
};

/// Runs batches on one device, several at a time (one per slot).
///
/// Ownership:  the executor holds a batch from Start until it hands it back through `done`.
/// Threads:    Start and Run may be called from any thread; Start never blocks. `done` comes exactly
///             once per batch, also when the batch failed or the device is lost, on a thread of the
///             executor, or within Run on the one that called it.
/// Results:    status and outputs of each job, and the copy and kernel times of its timing; the
///             scheduler fills the rest.
class BatchExecutor {
 public:
  using BatchDone = absl::AnyInvocable<void(std::unique_ptr<Batch>)>;

  virtual ~BatchExecutor() = default;

  /// "cpu", "cuda:0", ...
  virtual const std::string& device_name() const = 0;
  /// Batches that may be in flight at once. The scheduler never starts more.
  virtual int slots() const = 0;
  /// False once the device is lost; batches started then fail with UNAVAILABLE.
  virtual bool healthy() const = 0;
  /// Largest total of input, output and workspace bytes (LaunchBytes) a single batch may take; a
  /// request with more is RESOURCE_EXHAUSTED on admission. Leaves room for slab rounding.
  virtual int64_t max_batch_bytes() const = 0;
  /// Bytes that the kernels of a problem alone need beside its inputs and outputs.
  virtual int64_t WorkspaceBytes(const NormProblem& problem) const = 0;

  /// Memory for a job that is still to come, with `input_bytes` for its inputs: with all of them in
  /// it, its batch does not end for want of memory. Errors: UNAVAILABLE when with it such jobs would
  /// have more than half of that memory, or batches leave too little now, RESOURCE_EXHAUSTED when
  /// there is too little in all.
  virtual absl::StatusOr<JobMemory> LeaseMemory(const NormProblem& problem,
                                                int64_t input_bytes) = 0;

  virtual void Start(std::unique_ptr<Batch> batch, BatchDone done) = 0;

  /// Start for a caller that holds no lock and has nothing more urgent to do: a batch that is soon
  /// over may be computed and `done` called on its thread, which saves the changes of threads. Waits
  /// for a bounded time, less than a millisecond, and for nothing but the device.
  virtual void Run(std::unique_ptr<Batch> batch, BatchDone done) {
    Start(std::move(batch), std::move(done));
  }
};

}  // namespace norm::server
