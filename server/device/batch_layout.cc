#include "server/device/batch_layout.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "server/device/buffer_pool.h"

namespace norm::server {
namespace {

// Long runs are cut, so that threads can share a copy and a device copy can start before its end.
constexpr size_t kMaxPieceBytes = size_t{1} << 20;

/// The problem whose rows are those of all jobs, in order.
NormProblem MergedProblem(const Batch& batch) {
  NormProblem merged = batch.jobs.front()->problem;
  if (!IsRowMergeable(merged)) {
    return merged;
  }
  merged.rows = 0;
  int64_t images = 0;
  for (const auto& job : batch.jobs) {
    merged.rows += job->problem.rows;
    images += job->problem.batch_norm_shape.batch;
  }
  if (merged.op == Op::kBatchNorm) {
    BatchNormShape& shape = merged.batch_norm_shape;
    if (IsChannelsLast(shape)) {
      // Also for a job alone, so that the kernel sees the same kind of shape either way.
      shape = {merged.rows, shape.channels, 1, BatchNormLayout::kNhwc};
    } else {
      shape.batch = images;
    }
  }
  return merged;
}

int64_t Place(const NormProblem& problem, TensorRoleSet roles,
              std::array<TensorPlace, kTensorRoleCount>& places) {
  int64_t end = 0;
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

bool HasExpectedSize(const Job& job, TensorRole role) {
  const InputTensor& input = job.inputs[static_cast<size_t>(role)];
  const int64_t held = std::accumulate(
      input.runs.begin(), input.runs.end(), int64_t{0},
      [](int64_t sum, const auto& run) { return sum + static_cast<int64_t>(run.size()); });
  return held == TensorBytes(job.problem, role);
}

}  // namespace

BatchLayout MakeBatchLayout(const Batch& batch) {
  BatchLayout layout;
  layout.problem = MergedProblem(batch);
  layout.input_bytes = Place(layout.problem, layout.problem.inputs, layout.inputs);
  layout.output_bytes = Place(layout.problem, layout.problem.outputs, layout.outputs);
  return layout;
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

std::vector<CopyPiece> PlanGather(const Batch& batch, const BatchLayout& layout) {
  std::vector<CopyPiece> pieces;
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (!layout.problem.inputs.Has(role)) {
      continue;
    }
    int64_t start = layout.inputs[i].offset;
    for (const auto& job : batch.jobs) {
      if (HasExpectedSize(*job, role)) {
        int64_t to = start;
        for (absl::Span<const std::byte> run : job->inputs[i].runs) {
          while (!run.empty()) {
            const auto piece = run.first(std::min(run.size(), kMaxPieceBytes));
            pieces.push_back({to, piece});
            to += static_cast<int64_t>(piece.size());
            run.remove_prefix(piece.size());
          }
        }
      }
      if (IsParameter(role)) {
        break;
      }
      start += TensorBytes(job->problem, role);
    }
  }
  return pieces;
}

TensorPointers PointInto(const BatchLayout& layout, std::byte* input_slab, std::byte* output_slab) {
  TensorPointers pointers;
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (layout.problem.inputs.Has(role)) {
      pointers.inputs[i] = input_slab + layout.inputs[i].offset;
    }
    if (layout.problem.outputs.Has(role)) {
      pointers.outputs[i] = output_slab + layout.outputs[i].offset;
    }
  }
  return pointers;
}

void FillResults(const BatchLayout& layout, const std::shared_ptr<std::byte>& output_slab,
                 Batch& batch) {
  std::array<int64_t, kTensorRoleCount> next{};
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    next[i] = layout.outputs[i].offset;
  }
  batch.results.resize(batch.jobs.size());
  for (size_t j = 0; j < batch.jobs.size(); ++j) {
    const NormProblem& problem = batch.jobs[j]->problem;
    JobResult& result = batch.results[j];
    result.status = CheckInputSizes(*batch.jobs[j]);
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

void FailResults(const absl::Status& status, Batch& batch) {
  batch.results.assign(batch.jobs.size(), JobResult{});
  for (JobResult& result : batch.results) {
    result.status = status;
  }
}

}  // namespace norm::server
