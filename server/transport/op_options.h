// The op of a request with its options, checked as far as they can be without tensors.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "norm/v1/normalization.pb.h"
#include "server/scheduler/norm_problem.h"

namespace norm::server {

/// Fills op, eps, weight_offset, rounding, batch_norm_shape.layout, batch_norm_mode and momentum of
/// `problem`, and for row ops `normalized_dims` (>= 1 on success). Errors: INVALID_ARGUMENT when no
/// op is given or an option is outside its range.
absl::Status ReadOpOptions(const norm::v1::NormalizeRequest& request, NormProblem* problem,
                           int* normalized_dims);
absl::Status ReadOpOptions(const norm::v1::NormalizeBackwardRequest& request, NormProblem* problem,
                           int* normalized_dims);

}  // namespace norm::server
