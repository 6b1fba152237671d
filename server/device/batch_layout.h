// Where the tensors of a batch lie in staging memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/device/kernel_args.h"
#include "server/scheduler/batch_executor.h"

namespace norm::server {

/// A range of a slab.
struct TensorPlace {
  int64_t offset = 0;
  int64_t size_bytes = 0;
};

/// Jobs of a batch that are one problem: their rows lie end to end, their parameters once.
struct BatchSegment {
  NormProblem problem;                                  // with the rows of all its jobs
  std::array<TensorPlace, kTensorRoleCount> inputs{};   // in the input slab, for problem.inputs
  std::array<TensorPlace, kTensorRoleCount> outputs{};  // in the output slab, for problem.outputs
  size_t first_job = 0;
  size_t jobs = 0;
  absl::Status status;  // of the kernel's Validate; when not OK its jobs end with it
};

/// A batch over two slabs. Every tensor starts at a multiple of kSlabAlignment, so its alignment is
/// the same whether its rows come from one job or many, and whatever lies beside it.
struct BatchLayout {
  std::vector<BatchSegment> segments;
  // Of the input slab: first what is gathered on the host, then tensors that stay in page-locked
  // memory until a device copies them, in every job of their segment.
  int64_t gathered_bytes = 0;
  int64_t input_bytes = 0;
  int64_t output_bytes = 0;

  int64_t rows() const;
  /// ProblemBytes of the segments.
  int64_t problem_bytes() const;
};

/// ProblemBytes of the jobs, as far as they are not beyond `limit`.
int64_t BytesUpTo(const Batch& batch, int64_t limit);

inline constexpr int64_t kGatherAll = std::numeric_limits<int64_t>::max();

/// Overwrites `layout`, whose memory is used again. Inputs that are page-locked stay where they lie
/// if they have at least `direct_bytes`.
void MakeBatchLayout(const Batch& batch, int64_t direct_bytes, BatchLayout& layout);

absl::Span<const std::unique_ptr<Job>> JobsOf(const BatchSegment& segment, const Batch& batch);

/// Whether the job carries as many bytes for this input as its problem needs.
bool HasExpectedSize(const Job& job, TensorRole role);
/// OK when it does for all of them; else INTERNAL with both sizes.
absl::Status CheckInputSizes(const Job& job);

/// Pointers to the tensors of a segment in these slabs, and to the page-locked inputs of `in_place`,
/// its only job, where they lie.
TensorPointers PointInto(const BatchSegment& segment, std::byte* input_slab, std::byte* output_slab,
                         const Job* in_place = nullptr);

/// Makes `call` of the segments that the kernels accept; the others get their status. `in_place`:
/// the only job of the batch, whose page-locked inputs stay where they are.
void AddSegments(std::byte* input_slab, std::byte* output_slab, BatchLayout& layout,
                 KernelCall& call, const Job* in_place = nullptr);

/// Makes `call` of the problem alone, laid out as a batch of it would be, with its tensors nowhere:
/// for what depends on sizes and alignments. Empty where the kernels refuse it.
void MakeUnplacedCall(const NormProblem& problem, KernelCall& call);
/// Of the output slab of a batch that is this problem alone.
int64_t OutputSlabBytes(const NormProblem& problem);

/// The memory that the batch's only job brings, or null.
const JobMemory* BroughtMemory(const Batch& batch);

/// Gives each job the status of its segment and of CheckInputSizes and, where both are OK, its
/// slices of the output slab, which lives while any of them does.
void FillResults(const BatchLayout& layout, const std::shared_ptr<std::byte>& output_slab,
                 Batch& batch);
/// Ends every job of the batch with `status`.
void FailResults(const absl::Status& status, Batch& batch);

}  // namespace norm::server
