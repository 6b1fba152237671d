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
  RowBackwardLaunch launch;
  ColumnPlan columns;  // kStreaming
  bool wants_gradients = false;
  bool takes_statistics = false;  // ring kernels: a launch of its own computes them first
  int64_t partials = 0;
  void* dweight_partials = nullptr;
  void* dbias_partials = nullptr;
  norm_device::RowStatistics statistics = {};
  size_t workspace_bytes = 0;

  size_t partial_bytes() const { return row.UsesRing() ? sizeof(float) : sizeof(double); }
};

BackwardPlan PlanBackward(const RowNormBackwardArgs& args, DeviceTraits device, void* workspace) {
  BackwardPlan plan;
  plan.wants_gradients = args.dweight != nullptr || args.dbias != nullptr;
  if (args.rows == 0) return plan;
  const int ring_tensors = args.dresidual_sum == nullptr ? 2 : 3;
  plan.row =
      PlanRowBackward(DeviceKind(args.kind), args.hidden_size, args.dtype, ring_tensors, device);
  plan.launch = LaunchRowBackward(plan.row, args.rows);
  plan.takes_statistics = plan.row.UsesRing() && args.rstd == nullptr;
  WorkspaceLayout layout(workspace);
  const bool sums_columns = plan.row.method != norm_device::RowBackwardMethod::kStreaming;
  plan.partials = plan.launch.row_blocks * plan.launch.block_partials;
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
  if (args.dweight != nullptr) plan.dweight_partials = layout.TakeBytes(partials_bytes);
  if (args.dbias != nullptr) plan.dbias_partials = layout.TakeBytes(partials_bytes);
  plan.workspace_bytes = layout.size_bytes();
  return plan;
}

bool RowsAligned(const RowNormBackwardArgs& args) {
  return AllAligned({args.dy, args.x, args.weight, args.dresidual_sum, args.dx});
}

// --- Ring kernels ---

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

Status LaunchRing(const RowNormBackwardArgs& args, const BackwardPlan& plan, StreamHandle stream) {
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
  params.rows = args.rows;
  params.hidden_size = args.hidden_size;
  params.row_blocks = plan.launch.row_blocks;
  params.weight_offset = static_cast<float>(args.weight_offset);
  params.weight_is_f32 = args.weight_dtype == DType::kF32;
  constexpr int64_t kPieceBytes = 16;
  const bool aligned = RowsAligned(args);
  params.has_edges = !aligned || params.tensor_size % kPieceBytes != 0;
  params.stages = row.stages;
  params.tensor_bytes = static_cast<int>(row.tensor_bytes);
  params.column_totals_offset = static_cast<int>(row.column_totals_offset);
  params.exchange_offset = static_cast<int>(row.exchange_offset);
  params.careful_offset = static_cast<int>(row.careful_offset);
  params.cluster_blocks = row.cluster_blocks;
  params.columns = row.columns;
  params.tile_rows = row.tile_rows;
  params.partial_stages = static_cast<int>(plan.launch.partial_stages);
  params.block_partials = static_cast<int>(plan.launch.block_partials);
  const norm_device::RingKernel which = {row.method,    row.wide,     aligned,
                                         row.pipelined, row.granules, row.lanes};
  const void* kernel = VisitNarrowElement(args.dtype, [&](auto element) {
    return norm_device::RingBackwardKernel<decltype(element)>(DeviceKind(args.kind), which);
  });
  return Launch(kernel, plan.launch.config, params, stream);
}

// --- The other kernels ---

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
  norm_device::FinalizeParams params = {};
  params.dweight_partials = plan.dweight_partials;
  params.dbias_partials = plan.dbias_partials;
  params.dweight = args.dweight;
  params.dbias = args.dbias;
  params.partials = plan.partials;
  params.hidden_size = args.hidden_size;
  LaunchConfig launch;
  launch.blocks_x = (args.hidden_size - 1) / norm_device::kFinalizeThreadsX + 1;
  launch.blocks_y = args.dbias == nullptr ? 1 : 2;
  launch.threads_x = norm_device::kFinalizeThreadsX;
  launch.threads_y = norm_device::kFinalizeThreadsY;
  launch.overlaps_previous = device.HasClusters();
  const void* kernel = VisitElement(args.weight_dtype, [&](auto element) {
    return norm_device::FinalizeKernel<decltype(element)>(plan.partial_bytes() == sizeof(double));
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
  if (args.rows > 0) {
    if (plan.takes_statistics) {
      NORM_RETURN_IF_ERROR(LaunchStatistics(args, plan, device.value(), stream));
    }
    NORM_RETURN_IF_ERROR(plan.row.UsesRing() ? LaunchRing(args, plan, stream)
                                             : LaunchCareful(args, plan, stream));
  }
  return plan.wants_gradients ? LaunchFinalize(args, plan, device.value(), stream) : Status();
}

size_t RowNormBackwardCudaWorkspaceBytes(const RowNormBackwardArgs& args) {
  const Result<DeviceTraits> device = CurrentDeviceTraits();
  return device.ok() ? PlanBackward(args, device.value(), nullptr).workspace_bytes : 0;
}

}  // namespace norm::internal
