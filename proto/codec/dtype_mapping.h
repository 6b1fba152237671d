// norm::DType to and from its wire enumerator.
#pragma once

#include <optional>

#include "norm/kernels/dtype.h"
#include "norm/v1/tensor.pb.h"

namespace norm::wire {

/// Nothing for DTYPE_UNSPECIFIED and for values of newer contracts.
std::optional<DType> FromProto(norm::v1::DType dtype);
norm::v1::DType ToProto(DType dtype);

}  // namespace norm::wire
