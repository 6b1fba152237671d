// A call of the kernels library as a value.
#pragma once

#include <cstddef>
#include <variant>

#include "norm/kernels/batch_norm.h"
#include "norm/kernels/layer_norm.h"
#include "norm/kernels/rms_norm.h"

namespace norm::bench {

/// Arguments of any op, with device pointers.
using NormCall = std::variant<RmsNormForwardArgs, RmsNormBackwardArgs, LayerNormForwardArgs,
                              LayerNormBackwardArgs, BatchNormForwardArgs, BatchNormBackwardArgs>;

Status ValidateCall(const NormCall& call);
size_t WorkspaceBytes(const NormCall& call);
Status EnqueueCall(const NormCall& call, Workspace workspace, StreamHandle stream);

}  // namespace norm::bench
