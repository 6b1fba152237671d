// One large problem as several smaller ones over the same memory.
#pragma once

#include <cstdint>

#include "server/scheduler/norm_problem.h"

namespace norm::server {

/// How a mergeable problem (IsRowMergeable) is cut: by rows, and by images for BatchNorm in NCHW.
/// Slices give the bits of the whole.
struct RowSlices {
  int64_t units = 0;            // rows or images of the whole
  int64_t units_per_slice = 0;  // the last slice may have fewer
  int count = 0;

  int64_t first_unit(int slice) const { return slice * units_per_slice; }
};

/// Slices of about `slice_bytes` of inputs and outputs, of which there are at most `max_slices`.
RowSlices PlanRowSlices(const NormProblem& problem, int64_t slice_bytes, int max_slices);

/// `problem` with `units` rows or images.
NormProblem WithUnits(NormProblem problem, int64_t units);

/// The problem of one slice.
NormProblem SliceOf(const NormProblem& problem, const RowSlices& slices, int slice);

/// Where the slice starts in a tensor that is not a parameter, in bytes from the tensor's start.
int64_t SliceOffset(const NormProblem& problem, const RowSlices& slices, int slice,
                    TensorRole role);

}  // namespace norm::server
