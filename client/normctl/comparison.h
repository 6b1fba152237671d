// How far a result is from its golden values, and whether that is near enough.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "norm/client/tensor.h"
#include "norm/kernels/op_types.h"

namespace norm::normctl {

/// What an element's allowed error is relative to.
enum class ToleranceScale {
  kValue,    // max(1, |golden|)
  kElement,  // |golden|
  kRow,      // the largest |golden| of its row (last dimension)
  kChannel,  // the largest |golden| of its BatchNorm channel
  kTensor,   // the element of a tensor given beside it
};

/// |result - golden| <= relative * scale + ulps * (one unit in the last place of the golden in the
/// result's dtype). NaN and infinities must be equal.
struct Tolerance {
  double relative = 0.0;
  ToleranceScale scale = ToleranceScale::kValue;
  double ulps = 0.0;
};

struct Comparison {
  double max_error =
      0.0;  // the largest |result - golden|; infinity where one of them alone is not finite
  double max_used_share =
      0.0;  // the largest share of its tolerance that any error used; over 1 is a mismatch
  int64_t mismatches = 0;      // elements outside their tolerance
  int64_t first_mismatch = 0;  // its index in C order
};

/// `scale` is needed for ToleranceScale::kTensor; `layout` tells where the channels are for
/// kChannel. Errors: FAILED_PRECONDITION when shape or dtype differ, or the scale tensor is missing
/// or of another size.
absl::StatusOr<Comparison> Compare(const client::Tensor& result, const client::Tensor& golden,
                                   const Tolerance& tolerance,
                                   const std::optional<client::Tensor>& scale,
                                   BatchNormLayout layout);

}  // namespace norm::normctl
