#include "server/device/batch_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/device/buffer_pool.h"
#include "server/device/kernel_status.h"

namespace norm::server {
namespace {

/// The problem whose rows are those of all these jobs, in order.
NormProblem MergedProblem(absl::Span<const std::unique_ptr<Job>> jobs) {
  NormProblem merged = jobs.front()->problem;
  for (const auto& job : jobs.subspan(1)) {
    merged.rows += job->problem.rows;
    merged.batch_norm_shape.batch += job->problem.batch_norm_shape.batch;
  }
  if (merged.op == Op::kBatchNorm) {
    // Also for a job alone, so that the kernel sees the same kind of shape either way.
    merged.batch_norm_shape = LaunchShape(merged);
  }
  return merged;
}

/// Places the tensors of these roles behind `end`; returns where they end.
int64_t Place(const NormProblem& problem, TensorRoleSet roles, int64_t end,
              std::array<TensorPlace, kTensorRoleCount>& places) {
  for (int i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (roles.Has(role)) {
      const int64_t size = TensorBytes(problem, role);
      places[static_cast<size_t>(i)] = {end, size};
      end += (size + kSlabAlignment - 1) / kSlabAlignment * kSlabAlignment;
    }
  }
  return end;
}

/// Whether every job of the segment holds so many bytes of this input in page-locked memory.
bool StaysInPlace(const BatchSegment& segment, const Batch& batch, TensorRole role,
                  int64_t direct_bytes) {
  const auto jobs = JobsOf(segment, batch);
  return std::all_of(jobs.begin(), jobs.end(), [role, direct_bytes](const auto& job) {
    const InputTensor& input = job->inputs[static_cast<size_t>(role)];
    return input.page_locked && input.size_bytes >= direct_bytes;
  });
}

/// The inputs of the segment that stay in place, or those that do not.
TensorRoleSet InputsOf(const BatchSegment& segment, const Batch& batch, bool direct,
                       int64_t direct_bytes) {
  TensorRoleSet roles;
  for (int i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (segment.problem.inputs.Has(role) &&
        StaysInPlace(segment, batch, role, direct_bytes) == direct) {
      roles.Add(role);
    }
  }
  return roles;
}

}  // namespace

absl::Span<const std::unique_ptr<Job>> JobsOf(const BatchSegment& segment, const Batch& batch) {
  return absl::MakeConstSpan(batch.jobs).subspan(segment.first_job, segment.jobs);
}

int64_t BatchLayout::rows() const {
  return std::accumulate(
      segments.begin(), segments.end(), int64_t{0},
      [](int64_t sum, const BatchSegment& segment) { return sum + segment.problem.rows; });
}

int64_t BatchLayout::problem_bytes() const {
  return std::accumulate(
      segments.begin(), segments.end(), int64_t{0},
      [](int64_t sum, const BatchSegment& segment) { return sum + ProblemBytes(segment.problem); });
}

int64_t BytesUpTo(const Batch& batch, int64_t limit) {
  int64_t bytes = 0;
  for (const auto& job : batch.jobs) {
    bytes += ProblemBytes(job->problem);
    if (bytes > limit) {
      break;
    }
  }
  return bytes;
}

void MakeBatchLayout(const Batch& batch, int64_t direct_bytes, BatchLayout& layout) {
  layout.segments.clear();
  layout.output_bytes = 0;
  size_t first_job = 0;
  const auto add = [&](size_t jobs) {
    BatchSegment& segment = layout.segments.emplace_back();
    segment.first_job = std::exchange(first_job, first_job + jobs);
    segment.jobs = jobs;
    segment.problem = MergedProblem(JobsOf(segment, batch));
    layout.output_bytes =
        Place(segment.problem, segment.problem.outputs, layout.output_bytes, segment.outputs);
  };
  if (batch.segment_jobs.empty()) {
    add(batch.jobs.size());
  }
  for (const int64_t jobs : batch.segment_jobs) {
    add(static_cast<size_t>(jobs));
  }
  int64_t end = 0;
  for (const bool direct : {false, true}) {
    for (BatchSegment& segment : layout.segments) {
      end = Place(segment.problem, InputsOf(segment, batch, direct, direct_bytes), end,
                  segment.inputs);
    }
    (direct ? layout.input_bytes : layout.gathered_bytes) = end;
  }
}

bool HasExpectedSize(const Job& job, TensorRole role) {
  const InputTensor& input = job.inputs[static_cast<size_t>(role)];
  const int64_t held = std::accumulate(
      input.runs.begin(), input.runs.end(), int64_t{0},
      [](int64_t sum, const auto& run) { return sum + static_cast<int64_t>(run.size()); });
  return held == TensorBytes(job.problem, role);
}

absl::Status CheckInputSizes(const Job& job) {
  for (int i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (job.problem.inputs.Has(role) && !HasExpectedSize(job, role)) {
      return absl::InternalError(absl::StrCat("bytes of ", TensorRoleName(role),
                                              " != ", TensorBytes(job.problem, role),
                                              ", the size of its shape"));
    }
  }
  return absl::OkStatus();
}

TensorPointers PointInto(const BatchSegment& segment, std::byte* input_slab, std::byte* output_slab,
                         const Job* in_place) {
  TensorPointers pointers;
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (segment.problem.inputs.Has(role)) {
      const bool stays = in_place != nullptr && in_place->inputs[i].page_locked &&
                         in_place->inputs[i].size_bytes > 0;
      pointers.inputs[i] =
          stays ? in_place->inputs[i].runs.front().data() : input_slab + segment.inputs[i].offset;
    }
    if (segment.problem.outputs.Has(role)) {
      pointers.outputs[i] = output_slab + segment.outputs[i].offset;
    }
  }
  return pointers;
}

void AddSegments(std::byte* input_slab, std::byte* output_slab, BatchLayout& layout,
                 KernelCall& call, const Job* in_place) {
  call.Clear();
  for (BatchSegment& segment : layout.segments) {
    segment.status = ToAbslStatus(
        call.Add(segment.problem, PointInto(segment, input_slab, output_slab, in_place)));
  }
  call.GroupAlike();
}

void MakeUnplacedCall(const NormProblem& problem, KernelCall& call) {
  BatchSegment segment;
  segment.problem = problem;
  if (problem.op == Op::kBatchNorm) {
    segment.problem.batch_norm_shape = LaunchShape(problem);
  }
  Place(segment.problem, problem.inputs, 0, segment.inputs);
  Place(segment.problem, problem.outputs, 0, segment.outputs);
  // Slabs that are no memory and do not overlap.
  const auto slab = [](uintptr_t number) { return reinterpret_cast<std::byte*>(number << 60); };
  call.Clear();
  (void)call.Add(segment.problem, PointInto(segment, slab(1), slab(2)));
}

int64_t OutputSlabBytes(const NormProblem& problem) {
  std::array<TensorPlace, kTensorRoleCount> places;
  return Place(problem, problem.outputs, 0, places);
}

const JobMemory* BroughtMemory(const Batch& batch) {
  const JobMemory& memory = batch.jobs.front()->memory;
  return batch.jobs.size() == 1 && memory.outputs != nullptr ? &memory : nullptr;
}

void FillResults(const BatchLayout& layout, const std::shared_ptr<std::byte>& output_slab,
                 Batch& batch) {
  batch.results.resize(batch.jobs.size());
  for (const BatchSegment& segment : layout.segments) {
    std::array<int64_t, kTensorRoleCount> next{};
    for (size_t i = 0; i < kTensorRoleCount; ++i) {
      next[i] = segment.outputs[i].offset;
    }
    for (size_t j = segment.first_job; j < segment.first_job + segment.jobs; ++j) {
      const NormProblem& problem = batch.jobs[j]->problem;
      JobResult& result = batch.results[j];
      result.status = CheckInputSizes(*batch.jobs[j]);
      result.status.Update(segment.status);
      for (size_t i = 0; i < kTensorRoleCount; ++i) {
        const auto role = static_cast<TensorRole>(i);
        if (!problem.outputs.Has(role)) {
          continue;
        }
        const int64_t size = TensorBytes(problem, role);
        if (result.status.ok()) {
          result.outputs[i] = {output_slab.get() + next[i], size, output_slab};
        }
        next[i] += size;
      }
    }
  }
}

void FailResults(const absl::Status& status, Batch& batch) {
  batch.results.assign(batch.jobs.size(), JobResult{});
  for (JobResult& result : batch.results) {
    result.status = status;
  }
}

}  // namespace norm::server
