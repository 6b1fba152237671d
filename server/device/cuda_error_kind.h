// What an error of the CUDA runtime counts as in the metrics.
#pragma once

#include "norm/kernels/status.h"
#include "server/observability/metrics.h"

namespace norm::server {

/// Of a status that carries a CUDA error, or kOutOfMemory without one. IsSticky of the kind is
/// cuda::IsSticky of the status.
CudaErrorKind CudaErrorKindOf(const Status& status);

}  // namespace norm::server
