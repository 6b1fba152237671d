#include "dispatch/dtype_dispatch.h"
#include "dispatch/launch.h"
#include "dispatch/workspace_layout.h"
#include "row_norm/row_norm_backward_tuning.h"
#include "row_norm/row_norm_cuda.h"
#include "row_norm/row_norm_kind.h"
#include "validation/argument_checks.h"

namespace norm::internal {
namespace {

/// How backward is divided over launches, and its scratch.
struct BackwardPlan {
  RowBackwardPlan row;
  LaunchConfig row_launch;
  ColumnPlan columns;  // used when the row kernel does not sum columns itself
  bool wants_gradients = false;
  int64_t partials = 0;
  double* dweight_partials = nullptr;
  double* dbias_partials = nullptr;
  norm_device::RowStatistics statistics = {};
  size_t workspace_bytes = 0;
};

BackwardPlan PlanBackward(const RowNormBackwardArgs& args, DeviceTraits device, void* workspace) {
  BackwardPlan plan;
  plan.wants_gradients = args.dweight != nullptr || args.dbias != nullptr;
  if (args.rows == 0) return plan;
  plan.row = PlanRowBackward(args.hidden_size, args.dtype, device);
  plan.row_launch = RowBackwardLaunch(plan.row, args.rows);
  if (!plan.wants_gradients) return plan;
  WorkspaceLayout layout(workspace);
  plan.partials = plan.row_launch.blocks_x;
  if (!plan.row.sums_columns) {
    plan.columns = PlanColumns(args.rows, args.hidden_size, args.dtype, device);
    plan.partials = plan.columns.launch.blocks_y;
    const size_t bytes = static_cast<size_t>(args.rows) * DTypeSize(StatisticsDType(args.dtype));
    plan.statistics.rstd = layout.TakeBytes(bytes);
    if (args.kind == RowNormKind::kLayer) {
      plan.statistics.mean = layout.TakeBytes(bytes);
      plan.statistics.mean_correction = layout.TakeBytes(bytes);
    }
  }
  const int64_t elements = plan.partials * args.hidden_size;
  if (args.dweight != nullptr) plan.dweight_partials = layout.Take<double>(elements);
  if (args.dbias != nullptr) plan.dbias_partials = layout.Take<double>(elements);
  plan.workspace_bytes = layout.size_bytes();
  return plan;
}

Status LaunchRows(const RowNormBackwardArgs& args, const BackwardPlan& plan,
                  const norm_device::RowBackwardParams& params, StreamHandle stream) {
  const void* kernel = VisitElementPair(args.dtype, args.weight_dtype, [&](auto pair) {
    return norm_device::RowBackwardKernel<decltype(pair)>(DeviceKind(args.kind), plan.row.method,
                                                          plan.row.wide);
  });
  return Launch(kernel, plan.row_launch, params, stream);
}

Status LaunchColumns(const RowNormBackwardArgs& args, const BackwardPlan& plan,
                     StreamHandle stream) {
  norm_device::ColumnParams params = {};
  params.dy = args.dy;
  params.x = args.x;
  params.statistics = plan.statistics;
  params.dweight_partials = plan.dweight_partials;
  params.dbias_partials = plan.dbias_partials;
  params.rows = args.rows;
  params.hidden_size = args.hidden_size;
  params.rows_per_strip = plan.columns.rows_per_strip;
  params.aligned = AllAligned({args.dy, args.x});
  const void* kernel = VisitElement(args.dtype, [&](auto element) {
    return norm_device::ColumnKernel<decltype(element)>(DeviceKind(args.kind), plan.row.wide);
  });
  return Launch(kernel, plan.columns.launch, params, stream);
}

Status LaunchFinalize(const RowNormBackwardArgs& args, const BackwardPlan& plan,
                      StreamHandle stream) {
  norm_device::FinalizeParams params = {};
  params.dweight_partials = plan.dweight_partials;
  params.dbias_partials = plan.dbias_partials;
  params.dweight = args.dweight;
  params.dbias = args.dbias;
  params.partials = plan.partials;
  params.hidden_size = args.hidden_size;
  LaunchConfig launch;
  launch.blocks_x = (args.hidden_size - 1) / norm_device::kFinalizeThreadsX + 1;
  launch.blocks_y = 2;
  launch.threads_x = norm_device::kFinalizeThreadsX;
  launch.threads_y = norm_device::kFinalizeThreadsY;
  const void* kernel = VisitElement(args.weight_dtype, [](auto element) {
    return norm_device::FinalizeKernel<decltype(element)>();
  });
  return Launch(kernel, launch, params, stream);
}

}  // namespace

Status RowNormBackwardCuda(const RowNormBackwardArgs& args, Workspace workspace,
                           StreamHandle stream) {
  NORM_RETURN_IF_ERROR(Validate(args));
  const Result<DeviceTraits> device = CurrentDeviceTraits();
  NORM_RETURN_IF_ERROR(device.status());
  const BackwardPlan plan = PlanBackward(args, device.value(), workspace.data);
  NORM_RETURN_IF_ERROR(CheckWorkspace(workspace, plan.workspace_bytes));
  if (args.rows == 0) {
    return plan.wants_gradients ? LaunchFinalize(args, plan, stream) : Status();
  }

  norm_device::RowBackwardParams params = {};
  params.dy = args.dy;
  params.x = args.x;
  params.weight = args.weight;
  params.mean = args.mean;
  params.rstd = args.rstd;
  params.dresidual_sum = args.dresidual_sum;
  params.dx = args.dx;
  params.rows = args.rows;
  params.hidden_size = args.hidden_size;
  params.eps = args.eps;
  params.weight_offset = args.weight_offset;
  params.aligned = AllAligned({args.dy, args.x, args.weight, args.dresidual_sum, args.dx});
  if (!plan.wants_gradients) return LaunchRows(args, plan, params, stream);
  if (plan.row.sums_columns) {
    params.dweight_partials = plan.dweight_partials;
    params.dbias_partials = plan.dbias_partials;
    NORM_RETURN_IF_ERROR(LaunchRows(args, plan, params, stream));
  } else {
    params.statistics = plan.statistics;
    // dx in place of x or dy destroys what the column kernel reads: then the first launch leaves
    // statistics only.
    const bool in_place = args.dx == args.x || args.dx == args.dy;
    if (in_place) params.dx = nullptr;
    NORM_RETURN_IF_ERROR(LaunchRows(args, plan, params, stream));
    NORM_RETURN_IF_ERROR(LaunchColumns(args, plan, stream));
    if (in_place) {
      params.dx = args.dx;
      params.statistics = {};
      NORM_RETURN_IF_ERROR(LaunchRows(args, plan, params, stream));
    }
  }
  return LaunchFinalize(args, plan, stream);
}

size_t RowNormBackwardCudaWorkspaceBytes(const RowNormBackwardArgs& args) {
  const Result<DeviceTraits> device = CurrentDeviceTraits();
  return device.ok() ? PlanBackward(args, device.value(), nullptr).workspace_bytes : 0;
}

}  // namespace norm::internal
