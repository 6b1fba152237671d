// One request on its way through the server, from the transport's decoder to its completion.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/scheduler/norm_problem.h"

namespace norm::server {

/// The bytes of an input tensor as they lie in the receive buffers: runs in order, not aligned,
/// borrowed from the request.
struct InputTensor {
  std::vector<absl::Span<const std::byte>> runs;
  int64_t size_bytes = 0;
  // All of it: a GPU copies the runs from where they lie. In memory that the job brings, one run at
  // a multiple of 256 bytes, and the CPU reads it there.
  bool page_locked = false;
};

/// Memory of an executor that a job brings along, so that its batch, which is that job alone, needs
/// no other of that kind.
struct JobMemory {
  /// For inputs that are put together before their job exists; what lies in it, each tensor at a
  /// multiple of 256 bytes, is page_locked to that executor's batches.
  std::shared_ptr<std::byte> inputs;
  std::shared_ptr<std::byte> outputs;    // set where the job brings any
  std::shared_ptr<std::byte> workspace;  // where kernels' workspace is host memory, and needed
};

/// An output tensor in staging memory. `data` stays valid, and its memory out of the pool, while a
/// copy of `owner` lives; dropping the last copy is cheap and makes no CUDA call, on whatever
/// thread.
struct OutputTensor {
  const std::byte* data = nullptr;
  int64_t size_bytes = 0;
  std::shared_ptr<const void> owner;
};

/// Where a job's time went. All from one monotonic clock.
struct JobTiming {
  absl::Duration decode;
  absl::Duration queue;
  absl::Duration copy_in;
  absl::Duration kernel;
  absl::Duration copy_out;
  std::string device;
  int64_t batch_requests = 0;
  int64_t batch_rows = 0;
  int64_t batch_segments = 0;
};

/// What a job ends with. `outputs` is indexed by TensorRole and filled for problem.outputs when
/// `status` is OK.
struct JobResult {
  absl::Status status;
  std::array<OutputTensor, kTensorRoleCount> outputs;
  JobTiming timing;
};

/// Who waits: interactive jobs go first, bulk ones take what is left and a guaranteed share.
enum class Priority : uint8_t { kInteractive, kBulk };
inline constexpr int kPriorityCount = 2;

/// A request accepted by the transport. Owned by one holder at a time: transport, scheduler,
/// executor, scheduler again.
///
/// `done` is called exactly once for a submitted job, on any thread, must not block, and may delete
/// what the inputs borrow.
struct Job {
  NormProblem problem;
  std::array<InputTensor, kTensorRoleCount>
      inputs;  // indexed by TensorRole, filled for problem.inputs
  // Whose request it is: jobs of equal flow share one fair part of the server. The transport makes
  // it of the connection.
  uint64_t flow = 0;
  Priority priority = Priority::kInteractive;
  absl::Time deadline = absl::InfiniteFuture();  // on the Clock's time line
  absl::Time received;                           // when its message was complete
  absl::Time submitted;                          // set by the scheduler
  /// Set by the transport when the caller has gone; looked at before the job is launched. Shared
  /// with the call.
  std::shared_ptr<std::atomic<bool>> cancelled;
  /// Of its launch on the device beside inputs and outputs; set by the scheduler.
  int64_t workspace_bytes = 0;
  /// Where it brings memory, it travels alone.
  JobMemory memory;
  /// Its bytes are part of a Reservation that outlives it: they are not counted again, and what
  /// others have in the server neither refuses nor displaces it.
  bool reserved = false;
  absl::AnyInvocable<void(JobResult)> done;
};

/// What a launch of the job alone takes of a device: inputs, outputs and workspace.
inline int64_t LaunchBytes(const Job& job) {
  return ProblemBytes(job.problem) + job.workspace_bytes;
}

}  // namespace norm::server
