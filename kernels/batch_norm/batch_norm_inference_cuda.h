// Launches of the NCHW inference kernel.
#pragma once

#include <span>

#include "norm/kernels/batch_norm.h"

namespace norm::internal {

/// Whether the one-pass kernel takes the request: NCHW planes of at least 16 bytes, not f64, not
/// empty.
bool TakesPlaneInference(const BatchNormForwardArgs& args);

/// Requests of equal channels, spatial size and dtypes that TakesPlaneInference.
Status LaunchPlaneInference(std::span<const BatchNormForwardArgs> segments, StreamHandle stream);

}  // namespace norm::internal
