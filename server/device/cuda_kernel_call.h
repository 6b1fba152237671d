// Runs segments with the CUDA kernels.
#pragma once

#include <cstddef>

#include "norm/kernels/status.h"
#include "norm/kernels/workspace.h"
#include "server/device/kernel_args.h"

namespace norm::server {

/// For the current device. The call has a segment or more.
size_t CudaWorkspaceBytes(const KernelCall& call);

/// Enqueues on `stream`, whose device must be current; see the kernels for what that promises.
Status EnqueueOnCuda(const KernelCall& call, Workspace workspace, StreamHandle stream);

}  // namespace norm::server
