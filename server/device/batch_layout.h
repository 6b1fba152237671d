// Where the tensors of a batch lie in staging memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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

/// A batch as one problem over two slabs. Every tensor starts at a multiple of kSlabAlignment, so
/// its alignment is the same whether its rows come from one job or many.
struct BatchLayout {
  NormProblem problem;
  std::array<TensorPlace, kTensorRoleCount> inputs{};   // in the input slab, for problem.inputs
  std::array<TensorPlace, kTensorRoleCount> outputs{};  // in the output slab, for problem.outputs
  int64_t input_bytes = 0;
  int64_t output_bytes = 0;
};

BatchLayout MakeBatchLayout(const Batch& batch);

/// OK when the bytes the job carries are those its problem needs; else INTERNAL with both sizes.
absl::Status CheckInputSizes(const Job& job);

/// One copy from a receive buffer to the input slab.
struct CopyPiece {
  int64_t to = 0;  // offset in the slab
  absl::Span<const std::byte> from;
};

/// The copies that bring the inputs of every job to their place, in rising order of `to`;
/// parameters from the first job alone. Jobs that fail CheckInputSizes leave their part of the slab
/// as it is.
std::vector<CopyPiece> PlanGather(const Batch& batch, const BatchLayout& layout);

/// Pointers to the tensors of the layout in these slabs.
TensorPointers PointInto(const BatchLayout& layout, std::byte* input_slab, std::byte* output_slab);

/// Gives each job the status of CheckInputSizes and, where that is OK, its slices of the output
/// slab, which lives while any of them does.
void FillResults(const BatchLayout& layout, const std::shared_ptr<std::byte>& output_slab,
                 Batch& batch);
/// Ends every job of the batch with `status`.
void FailResults(const absl::Status& status, Batch& batch);

}  // namespace norm::server
