#include "dispatch/dtype_dispatch.h"
#include "dispatch/launch.h"
#include "row_norm/row_norm_backward_request.h"
#include "row_norm/row_norm_cuda.h"
#include "row_norm/row_norm_kind.h"
#include "validation/argument_checks.h"

namespace norm::internal {
namespace {

using norm_device::BackwardLaunchKind;

Status LaunchRing(const RowNormBackwardArgs& args, const BackwardPlan& plan, StreamHandle stream) {
  const bool few = args.kind == RowNormKind::kLayer && args.rows <= norm_device::kExactMeanRows;
  const void* kernel = FindRingKernel(
      few ? BackwardLaunchKind::kFewRows : BackwardLaunchKind::kSingle, DeviceKind(args.kind),
      args.dtype, WhichRingKernel(args, plan, RowsAligned(args)));
  return few ? Launch(kernel, plan.launch.config,
                      norm_device::RingBackwardFewRows{RingParams(args, plan)}, stream)
             : Launch(kernel, plan.launch.config, RingParams(args, plan), stream);
}

Status LaunchColumns(const RowNormBackwardArgs& args, const BackwardPlan& plan,
                     StreamHandle stream) {
  norm_device::ColumnParams params = {};
  params.dy = args.dy;
  params.x = args.x;
  params.statistics = plan.statistics;
  params.dweight_partials = static_cast<double*>(plan.dweight_partials);
  params.dbias_partials = static_cast<double*>(plan.dbias_partials);
  params.rows = args.rows;
  params.hidden_size = args.hidden_size;
  params.rows_per_strip = plan.columns.rows_per_strip;
  params.aligned = AllAligned({args.dy, args.x});
  const void* kernel = VisitElement(args.dtype, [&](auto element) {
    return norm_device::ColumnKernel<decltype(element)>(DeviceKind(args.kind), plan.row.wide);
  });
  return Launch(kernel, plan.columns.launch, params, stream);
}

Status LaunchCareful(const RowNormBackwardArgs& args, const BackwardPlan& plan,
                     StreamHandle stream) {
  norm_device::CarefulBackwardParams params = {};
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
  params.aligned = RowsAligned(args);
  const void* kernel = VisitElementPair(args.dtype, args.weight_dtype, [&](auto pair) {
    return norm_device::CarefulBackwardKernel<decltype(pair)>(DeviceKind(args.kind),
                                                              plan.row.method, plan.row.wide);
  });
  const auto launch = [&] { return Launch(kernel, plan.launch.config, params, stream); };
  if (!plan.wants_gradients) return launch();
  if (plan.row.method != norm_device::RowBackwardMethod::kStreaming) {
    params.dweight_partials = static_cast<double*>(plan.dweight_partials);
    params.dbias_partials = static_cast<double*>(plan.dbias_partials);
    return launch();
  }
  params.statistics = plan.statistics;
  // dx in place of x or dy destroys what the column kernel reads: then the first launch leaves
  // statistics only.
  const bool in_place = args.dx == args.x || args.dx == args.dy;
  if (in_place) params.dx = nullptr;
  NORM_RETURN_IF_ERROR(launch());
  NORM_RETURN_IF_ERROR(LaunchColumns(args, plan, stream));
  if (!in_place) return Status();
  params.dx = args.dx;
  params.statistics = {};
  return launch();
}

Status LaunchFinalize(const RowNormBackwardArgs& args, const BackwardPlan& plan,
                      DeviceTraits device, StreamHandle stream) {
  const bool partials_are_f64 = plan.partial_bytes() == sizeof(double);
  const void* kernel = FindFinalizeKernel(BackwardLaunchKind::kSingle, args.weight_dtype,
                                          args.hidden_size, partials_are_f64);
  return Launch(kernel, FinalizeLaunch(args.hidden_size, args.kind, partials_are_f64, device),
                FinalizeParamsOf(args, plan), stream);
}

}  // namespace

Status RowNormBackwardCuda(const RowNormBackwardArgs& args, Workspace workspace,
                           StreamHandle stream) {
  NORM_RETURN_IF_ERROR(Validate(args));
  const Result<DeviceTraits> device = CurrentDeviceTraits();
  NORM_RETURN_IF_ERROR(device.status());
  const BackwardPlan plan = PlanBackward(args, device.value(), workspace.data);
  NORM_RETURN_IF_ERROR(CheckWorkspace(workspace, plan.workspace_bytes));
  if (args.rows > 0) {
    if (plan.takes_statistics) {
      NORM_RETURN_IF_ERROR(LaunchStatistics(args, plan, device.value(), stream));
    }
    NORM_RETURN_IF_ERROR(plan.row.UsesRing() ? LaunchRing(args, plan, stream)
                                             : LaunchCareful(args, plan, stream));
  }
  const bool finalized = plan.launch.config.cooperative;
  return plan.finalizes && !finalized ? LaunchFinalize(args, plan, device.value(), stream)
                                      : Status();
}

size_t RowNormBackwardCudaWorkspaceBytes(const RowNormBackwardArgs& args) {
  const Result<DeviceTraits> device = CurrentDeviceTraits();
  return device.ok() ? PlanBackward(args, device.value(), nullptr).workspace_bytes : 0;
}

}  // namespace norm::internal
