// Launches of the inference kernels.
#pragma once

#include <span>

#include "norm/kernels/batch_norm.h"

namespace norm::internal {

/// Whether a kernel of one pass takes the request, which then needs no workspace: inference, not
/// f64, not empty, no planes below 16 bytes; backward without dweight and dbias.
bool TakesInference(const BatchNormForwardArgs& args);
bool TakesInference(const BatchNormBackwardArgs& args);

/// Requests of equal channels, spatial size, layout and dtypes that TakesInference.
Status LaunchInference(std::span<const BatchNormForwardArgs> segments, StreamHandle stream);
Status LaunchInference(std::span<const BatchNormBackwardArgs> segments, StreamHandle stream);

}  // namespace norm::internal
