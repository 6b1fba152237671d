// Runs segments with the CPU kernels.
#pragma once

#include <cstddef>

#include "norm/kernels/status.h"
#include "norm/kernels/thread_pool.h"
#include "norm/kernels/workspace.h"
#include "server/device/kernel_args.h"

namespace norm::server {

/// The call has a segment or more.
size_t CpuWorkspaceBytes(const KernelCall& call);

/// Complete on return.
Status RunOnCpu(const KernelCall& call, Workspace workspace, ThreadPool& threads);

}  // namespace norm::server
