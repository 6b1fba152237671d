// How a request is cut into rows: what a chunked transfer sends and what its launches take.
#pragma once

#include <cstdint>

#include "server/scheduler/norm_problem.h"

namespace norm::server {

/// The rows of a problem as the wire counts them: contiguous runs of x in C order.
struct RowSplit {
  int64_t rows = 0;          // 0 for an empty tensor
  int64_t row_elements = 0;  // row ops: hidden_size. BatchNorm: channels where they are last, else
                             // the positions of one channel of one image
  int64_t unit_rows = 1;     // a launch takes a multiple of these: the channels of an image, or 1
};
RowSplit SplitRows(const NormProblem& problem);

/// Whether every row of the outputs depends on that row of the inputs and the parameters alone, so
/// that a launch may take any of them: forward of row ops, BatchNorm inference, backward without
/// gradients of parameters.
bool RowsAreIndependent(const NormProblem& problem);

/// Whether the tensor is cut into rows. The others come and go whole: parameters, statistics of
/// BatchNorm, gradients of parameters.
bool TravelsInRows(Op op, TensorRole role);

/// Bytes of one row of such a tensor.
int64_t RowBytes(const NormProblem& problem, TensorRole role);

/// The problem of `rows` rows (a multiple of unit_rows) of one whose rows are independent. Outputs
/// that do not travel in rows are left to the `first` one.
NormProblem RowsOf(const NormProblem& whole, int64_t rows, bool first);

}  // namespace norm::server
