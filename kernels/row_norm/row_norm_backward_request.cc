#include "row_norm/row_norm_backward_request.h"

#include <type_traits>

#include "dispatch/dtype_dispatch.h"
#include "dispatch/workspace_layout.h"
#include "row_norm/row_norm_kind.h"
#include "row_norm/row_norm_strip_device.h"

namespace norm::internal {
namespace {

/// Returns visitor(tag) for the dtypes that ring kernels take.
template <typename Visitor>
auto VisitNarrowElement(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::kF16:
      return visitor(norm_device::F16{});
    case DType::kBF16:
      return visitor(norm_device::BF16{});
    default:
      return visitor(norm_device::F32{});
  }
}

}  // namespace

BackwardPlan PlanBackward(const RowNormBackwardArgs& args, DeviceTraits device, void* workspace) {
  BackwardPlan plan;
  plan.wants_gradients = args.dweight != nullptr || args.dbias != nullptr;
  plan.finalizes = plan.wants_gradients;
  if (args.rows == 0) return plan;
  const int ring_tensors = args.dresidual_sum == nullptr ? 2 : 3;
  plan.row =
      PlanRowBackward(DeviceKind(args.kind), args.hidden_size, args.dtype, ring_tensors, device);
  plan.launch = LaunchRowBackward(plan.row, args.rows, plan.wants_gradients);
  plan.takes_statistics = plan.row.UsesRing() && args.rstd == nullptr;
  WorkspaceLayout layout(workspace);
  const bool sums_columns = plan.row.method != norm_device::RowBackwardMethod::kStreaming;
  plan.partials = plan.launch.row_blocks * plan.launch.block_partials;
  if (plan.row.column_totals_offset < 0) plan.partials *= plan.row.groups;
  if (plan.launch.direct) plan.partials = 0;
  if (!sums_columns) {
    plan.columns = PlanColumns(args.rows, args.hidden_size, args.dtype, device);
    plan.partials = plan.columns.launch.blocks_y;
  }
  if (plan.takes_statistics || (!sums_columns && plan.wants_gradients)) {
    const size_t bytes = static_cast<size_t>(args.rows) * DTypeSize(StatisticsDType(args.dtype));
    plan.statistics.rstd = layout.TakeBytes(bytes);
    if (args.kind == RowNormKind::kLayer) {
      plan.statistics.mean = layout.TakeBytes(bytes);
      if (!sums_columns) plan.statistics.mean_correction = layout.TakeBytes(bytes);
    }
  }
  const size_t partials_bytes =
      static_cast<size_t>(plan.partials * args.hidden_size) * plan.partial_bytes();
  plan.finalizes = plan.wants_gradients && !plan.launch.direct;
  if (plan.finalizes && args.dweight != nullptr) {
    plan.dweight_partials = layout.TakeBytes(partials_bytes);
  }
  if (plan.finalizes && args.dbias != nullptr) {
    plan.dbias_partials = layout.TakeBytes(partials_bytes);
  }
  if (plan.launch.strip_total_bytes > 0) {
    plan.strip_totals = layout.TakeBytes(static_cast<size_t>(plan.launch.strip_total_bytes));
  }
  plan.workspace = workspace;
  plan.workspace_bytes = layout.size_bytes();
  return plan;
}

bool RowsAligned(const RowNormBackwardArgs& args) {
  return AllAligned({args.dy, args.x, args.weight, args.dresidual_sum, args.dx});
}

Status LaunchStatistics(const RowNormBackwardArgs& args, const BackwardPlan& plan,
                        DeviceTraits device, StreamHandle stream) {
  norm_device::RowStatisticsParams params = {};
  params.x = args.x;
  params.mean = static_cast<float*>(plan.statistics.mean);
  params.rstd = static_cast<float*>(plan.statistics.rstd);
  params.rows = args.rows;
  params.hidden_size = args.hidden_size;
  params.eps = args.eps;
  params.aligned = AllAligned({args.x});
  const void* kernel = VisitNarrowElement(args.dtype, [&](auto element) {
    return norm_device::RowStatisticsKernel<decltype(element)>(DeviceKind(args.kind),
                                                               plan.row.wide);
  });
  return Launch(kernel, LaunchRowStatistics(args.rows, args.hidden_size, device), params, stream);
}

norm_device::RingBackwardParams RingParams(const RowNormBackwardArgs& args,
                                           const BackwardPlan& plan) {
  const RowBackwardPlan& row = plan.row;
  norm_device::RingBackwardParams params = {};
  params.tensors[0] = args.x;
  params.tensors[1] = args.dy;
  params.tensors[2] = args.dresidual_sum;
  params.ring_tensors = args.dresidual_sum == nullptr ? 2 : 3;
  params.tensor_size = args.rows * args.hidden_size * static_cast<int64_t>(DTypeSize(args.dtype));
  params.weight = args.weight;
  params.mean = static_cast<const float*>(plan.takes_statistics ? plan.statistics.mean : args.mean);
  params.rstd = static_cast<const float*>(plan.takes_statistics ? plan.statistics.rstd : args.rstd);
  params.dx = args.dx;
  params.dweight_partials = static_cast<float*>(plan.dweight_partials);
  params.dbias_partials = static_cast<float*>(plan.dbias_partials);
  if (plan.launch.direct || plan.launch.config.cooperative) {
    params.dweight = args.dweight;
    params.dbias = args.dbias;
  }
  params.strip_totals = static_cast<double*>(plan.strip_totals);
  params.rows = args.rows;
  params.hidden_size = args.hidden_size;
  params.row_blocks = plan.launch.row_blocks;
  params.weight_offset = static_cast<float>(args.weight_offset);
  params.weight_is_f32 = args.weight_dtype == DType::kF32;
  constexpr int64_t kPieceBytes = 16;
  params.has_edges = !RowsAligned(args) || params.tensor_size % kPieceBytes != 0;
  params.stages = row.stages;
  params.tensor_bytes = static_cast<int>(row.tensor_bytes);
  params.column_totals_offset = static_cast<int>(row.column_totals_offset);
  params.exchange_offset = static_cast<int>(row.exchange_offset);
  params.careful_offset = static_cast<int>(row.careful_offset);
  params.weights_offset = static_cast<int>(row.weights_offset);
  params.cluster_blocks = row.cluster_blocks;
  params.group_warps = row.group_warps;
  params.groups = row.groups;
  params.group_rows = args.rows / (plan.launch.row_blocks * row.groups);
  params.rows_left = args.rows % (plan.launch.row_blocks * row.groups);
  params.column_share = 1.0F / static_cast<float>(args.hidden_size);
  params.columns = row.columns;
  params.tile_rows = row.tile_rows;
  params.partial_stages = static_cast<int>(plan.launch.partial_stages);
  params.block_partials = static_cast<int>(plan.launch.block_partials);
  return params;
}

norm_device::RingKernel WhichRingKernel(const RowNormBackwardArgs& args, const BackwardPlan& plan,
                                        bool aligned) {
  const RowBackwardPlan& row = plan.row;
  return {row.method,
          row.wide,
          aligned,
          row.pipelined,
          row.granules,
          row.lanes,
          aligned && args.dresidual_sum == nullptr};
}

const void* FindRingKernel(norm_device::BackwardLaunchKind launch, norm_device::RowKind kind,
                           DType dtype, const norm_device::RingKernel& which) {
  return VisitNarrowElement(dtype, [&](auto element) {
    using X = decltype(element);
    if (which.method == norm_device::RowBackwardMethod::kLong) {
      return norm_device::LongBackwardKernel<X>(launch, kind, which);
    }
    if constexpr (!std::is_same_v<X, norm_device::F32>) {
      if (which.method == norm_device::RowBackwardMethod::kStrips) {
        return norm_device::StripBackwardKernel<X>(launch, kind, which.granules);
      }
    }
    if (launch == norm_device::BackwardLaunchKind::kFewRows) {
      return norm_device::RingBackwardFewRowsKernel<X>(which);
    }
    return launch == norm_device::BackwardLaunchKind::kSingle
               ? norm_device::RingBackwardKernel<X>(kind, which)
               : norm_device::RingBackwardSegmentsKernel<X>(kind, which);
  });
}

norm_device::FinalizeParams FinalizeParamsOf(const RowNormBackwardArgs& args,
                                             const BackwardPlan& plan) {
  norm_device::FinalizeParams params = {};
  params.dweight_partials = plan.dweight_partials;
  params.dbias_partials = plan.dbias_partials;
  params.dweight = args.dweight;
  params.dbias = args.dbias;
  params.partials = plan.partials;
  params.hidden_size = args.hidden_size;
  return params;
}

const void* FindFinalizeKernel(norm_device::BackwardLaunchKind launch, DType weight_dtype,
                               int64_t hidden_size, bool partials_are_f64) {
  const int columns = norm_device::FinalizeShapeOf(hidden_size, partials_are_f64).columns;
  return VisitElement(weight_dtype, [&](auto element) {
    return norm_device::FinalizeKernel<decltype(element)>(launch, partials_are_f64, columns);
  });
}

LaunchConfig FinalizeLaunch(int64_t hidden_size, RowNormKind kind, bool partials_are_f64,
                            DeviceTraits device) {
  const norm_device::FinalizeShape shape =
      norm_device::FinalizeShapeOf(hidden_size, partials_are_f64);
  LaunchConfig launch;
  launch.blocks_x = (hidden_size - 1) / shape.block_columns() + 1;
  launch.blocks_y = kind == RowNormKind::kRms ? 1 : 2;
  launch.threads_x = shape.lanes;
  launch.threads_y = shape.threads / shape.lanes;
  launch.overlaps_previous = device.HasClusters();
  return launch;
}

}  // namespace norm::internal
