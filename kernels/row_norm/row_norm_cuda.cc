#include "row_norm/row_norm_cuda.h"

#include "dispatch/dtype_dispatch.h"
#include "dispatch/launch.h"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_kind.h"
#include "row_norm/row_norm_tuning.h"
#include "validation/argument_checks.h"

namespace norm::internal {

Status RowNormForwardCuda(const RowNormForwardArgs& args, Workspace workspace,
                          StreamHandle stream) {
  NORM_RETURN_IF_ERROR(Validate(args));
  if (args.rows == 0) return Status();
  const Result<DeviceTraits> device = CurrentDeviceTraits();
  NORM_RETURN_IF_ERROR(device.status());
  const RowNormPlan plan = PlanRowForward(args.hidden_size, args.dtype, device.value());
  norm_device::RowForwardParams params = {};
  params.x = args.x;
  params.residual = args.residual;
  params.weight = args.weight;
  params.bias = args.bias;
  params.y = args.y;
  params.residual_sum = args.residual_sum;
  params.mean = args.mean;
  params.rstd = args.rstd;
  params.rows = args.rows;
  params.hidden_size = args.hidden_size;
  params.eps = args.eps;
  params.weight_offset = args.weight_offset;
  params.aligned =
      AllAligned({args.x, args.residual, args.weight, args.bias, args.y, args.residual_sum});
  params.round_normalized = args.rounding == Rounding::kNormalizedFirst;
  const void* kernel = VisitElementPair(args.dtype, args.weight_dtype, [&](auto pair) {
    return norm_device::RowForwardKernel<decltype(pair)>(DeviceKind(args.kind), plan.method,
                                                         plan.wide);
  });
  return Launch(kernel, RowLaunch(plan, args.rows), params, stream);
}

}  // namespace norm::internal
