// From the kernels library's Status to absl::Status, once.
#pragma once

#include "absl/status/status.h"
#include "norm/kernels/status.h"

namespace norm::server {

/// kInvalidArgument, kUnsupported and kOutOfMemory become INVALID_ARGUMENT, UNIMPLEMENTED and
/// RESOURCE_EXHAUSTED; kCuda becomes INTERNAL. The message is kept.
absl::Status ToAbslStatus(const Status& status);

}  // namespace norm::server
