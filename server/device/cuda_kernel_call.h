// Runs a problem with the CUDA kernels.
#pragma once

#include <cstddef>

#include "norm/kernels/status.h"
#include "norm/kernels/workspace.h"
#include "server/device/kernel_args.h"

namespace norm::server {

/// For the current device.
size_t CudaWorkspaceBytes(const NormProblem& problem, const TensorPointers& at);

/// Enqueues on `stream`, whose device must be current; see the kernels for what that promises.
Status EnqueueOnCuda(const NormProblem& problem, const TensorPointers& at, Workspace workspace,
                     StreamHandle stream);

}  // namespace norm::server
