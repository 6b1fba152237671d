// Runs a problem with the CPU kernels.
#pragma once

#include <cstddef>

#include "norm/kernels/status.h"
#include "norm/kernels/thread_pool.h"
#include "norm/kernels/workspace.h"
#include "server/device/kernel_args.h"

namespace norm::server {

size_t CpuWorkspaceBytes(const NormProblem& problem, const TensorPointers& at);

/// Complete on return.
Status RunOnCpu(const NormProblem& problem, const TensorPointers& at, Workspace workspace,
                ThreadPool& threads);

}  // namespace norm::server
