#include <algorithm>
#include <vector>

#include "row_norm/row_norm_backward_cuda.h"
#include "row_norm/row_norm_backward_request.h"
#include "row_norm/row_norm_cuda.h"
#include "row_norm/row_norm_kind.h"
#include "validation/argument_checks.h"

namespace norm::internal {
namespace {

using norm_device::BackwardLaunchKind;
using norm_device::FinalizeSegments;
using norm_device::RingBackwardSegments;

struct Request {
  const RowNormBackwardArgs* args;
  BackwardPlan plan;
};

/// Every request's plan as if alone, its scratch after that of the one before.
std::vector<Request> PlanRequests(std::span<const RowNormBackwardArgs> segments,
                                  DeviceTraits device, void* workspace, size_t& bytes) {
  std::vector<Request> requests;
  bytes = 0;
  for (const RowNormBackwardArgs& args : segments) {
    void* part = workspace == nullptr ? nullptr : static_cast<std::byte*>(workspace) + bytes;
    requests.push_back({&args, PlanBackward(args, device, part)});
    bytes += requests.back().plan.workspace_bytes;
  }
  return requests;
}

/// Requests that one launch of one kernel takes.
bool SameLaunch(const BackwardPlan& a, const BackwardPlan& b) {
  return a.row.method == b.row.method && a.row.threads == b.row.threads &&
         a.row.granules == b.row.granules && a.row.lanes == b.row.lanes &&
         a.row.pipelined == b.row.pipelined && a.row.group_warps == b.row.group_warps &&
         a.row.groups == b.row.groups && a.row.cluster_blocks == b.row.cluster_blocks;
}

Status LaunchRings(std::span<const Request> requests, StreamHandle stream) {
  size_t next = 0;
  while (next < requests.size()) {
    RingBackwardSegments table = {};
    const Request& first = requests[next];
    LaunchConfig config = first.plan.launch.config;
    config.cooperative = false;
    bool aligned = true;
    for (; next < requests.size() && table.segments < RingBackwardSegments::kMaxSegments &&
           SameLaunch(requests[next].plan, first.plan);
         ++next) {
      const Request& request = requests[next];
      const LaunchConfig& alone = request.plan.launch.config;
      table.params[table.segments] = RingParams(*request.args, request.plan);
      table.first_block[table.segments + 1] =
          table.first_block[table.segments] + static_cast<int32_t>(alone.blocks_x);
      ++table.segments;
      config.dynamic_shared_bytes =
          std::max(config.dynamic_shared_bytes, alone.dynamic_shared_bytes);
      aligned = aligned && RowsAligned(*request.args);
    }
    config.blocks_x = table.first_block[table.segments];
    const void* kernel =
        FindRingKernel(BackwardLaunchKind::kSegments, DeviceKind(first.args->kind),
                       first.args->dtype, WhichRingKernel(*first.args, first.plan, aligned));
    NORM_RETURN_IF_ERROR(Launch(kernel, config, table, stream));
  }
  return Status();
}

Status LaunchFinalizes(std::span<const Request> requests, DeviceTraits device,
                       StreamHandle stream) {
  size_t next = 0;
  while (next < requests.size()) {
    FinalizeSegments table = {};
    const RowNormBackwardArgs& first = *requests[next].args;
    LaunchConfig config = FinalizeLaunch(first.hidden_size, first.kind, false, device);
    const auto blocks = static_cast<int32_t>(config.blocks_x);
    // Column blocks of a long row times segments stay within the grid.
    const int64_t most =
        std::clamp<int64_t>(kMaxBlocksX / blocks, 1, FinalizeSegments::kMaxSegments);
    for (; next < requests.size() && table.segments < most; ++next) {
      table.params[table.segments] = FinalizeParamsOf(*requests[next].args, requests[next].plan);
      table.first_block[table.segments + 1] = table.first_block[table.segments] + blocks;
      ++table.segments;
    }
    config.blocks_x = table.first_block[table.segments];
    const void* kernel = FindFinalizeKernel(BackwardLaunchKind::kSegments, first.weight_dtype,
                                            first.hidden_size, false);
    NORM_RETURN_IF_ERROR(Launch(kernel, config, table, stream));
  }
  return Status();
}

}  // namespace

Status RowNormBackwardSegmentsCuda(std::span<const RowNormBackwardArgs> segments,
                                   Workspace workspace, StreamHandle stream) {
  const Result<DeviceTraits> device = CurrentDeviceTraits();
  NORM_RETURN_IF_ERROR(device.status());
  size_t bytes = 0;
  const std::vector<Request> requests =
      PlanRequests(segments, device.value(), workspace.data, bytes);
  NORM_RETURN_IF_ERROR(CheckWorkspace(workspace, bytes));
  std::vector<Request> rings;
  std::vector<Request> finalizes;
  for (const Request& request : requests) {
    const RowNormBackwardArgs& args = *request.args;
    if (args.rows > 0 && !request.plan.row.UsesRing()) {
      // f64 and very long rows: launches of their own.
      const Workspace own = {request.plan.workspace, request.plan.workspace_bytes};
      NORM_RETURN_IF_ERROR(RowNormBackwardCuda(args, own, stream));
      continue;
    }
    if (args.rows > 0) {
      if (request.plan.takes_statistics) {
        NORM_RETURN_IF_ERROR(LaunchStatistics(args, request.plan, device.value(), stream));
      }
      rings.push_back(request);
    }
    if (request.plan.finalizes) finalizes.push_back(request);
  }
  NORM_RETURN_IF_ERROR(LaunchRings(rings, stream));
  return LaunchFinalizes(finalizes, device.value(), stream);
}

size_t RowNormBackwardSegmentsCudaWorkspaceBytes(std::span<const RowNormBackwardArgs> segments) {
  const Result<DeviceTraits> device = CurrentDeviceTraits();
  size_t bytes = 0;
  if (device.ok()) PlanRequests(segments, device.value(), nullptr, bytes);
  return bytes;
}

}  // namespace norm::internal
