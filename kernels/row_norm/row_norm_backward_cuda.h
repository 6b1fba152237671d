// Row backward of many requests on the current device.
#pragma once

#include <span>

#include "norm/kernels/workspace.h"
#include "row_norm/row_norm.h"

namespace norm::internal {

/// Validated requests of equal kind, hidden size and dtypes in as few launches as their plans
/// allow; each request's bits are those alone. f64, rows beyond a cluster and missing statistics
/// take launches of their own.
Status RowNormBackwardSegmentsCuda(std::span<const RowNormBackwardArgs> segments,
                                   Workspace workspace, StreamHandle stream);
size_t RowNormBackwardSegmentsCudaWorkspaceBytes(std::span<const RowNormBackwardArgs> segments);

}  // namespace norm::internal
