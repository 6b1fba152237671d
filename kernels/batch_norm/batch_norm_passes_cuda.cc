#include "batch_norm/batch_norm_passes_cuda.h"

#include <algorithm>
#include <initializer_list>

#include "batch_norm/batch_norm_tuning.h"
#include "dispatch/dtype_dispatch.h"
#include "dispatch/launch.h"
#include "dispatch/workspace_layout.h"
#include "validation/argument_checks.h"

namespace norm::internal {
namespace {

using norm_device::ChannelCoefficients;
using norm_device::StatisticsSource;

bool AllAligned(std::initializer_list<const void*> tensors) {
  constexpr uintptr_t kAccessBytes = 16;
  return std::all_of(tensors.begin(), tensors.end(), [](const void* tensor) {
    return reinterpret_cast<uintptr_t>(tensor) % kAccessBytes == 0;
  });
}

/// Chunk sums: up to three f64 arrays of [channels, chunks].
struct ChunkSums {
  double* first = nullptr;
  double* second = nullptr;
  double* third = nullptr;
};

struct Scratch {
  ChannelCoefficients coefficients = {};
  ChunkSums moments;
  ChunkSums gradients;
  size_t workspace_bytes = 0;
};

Scratch LayOutForward(const BatchNormForwardArgs& args, const BatchNormPlan& plan,
                      void* workspace) {
  WorkspaceLayout layout(workspace);
  Scratch scratch;
  const size_t bytes =
      static_cast<size_t>(args.shape.channels) * DTypeSize(StatisticsDType(args.dtype));
  ChannelCoefficients& c = scratch.coefficients;
  for (void** part : {&c.mean, &c.mean_correction, &c.rstd, &c.scale, &c.shift}) {
    *part = layout.TakeBytes(bytes);
  }
  if (args.mode == BatchNormMode::kTraining) {
    const int64_t sums = args.shape.channels * plan.chunks.chunks;
    scratch.moments.first = layout.Take<double>(sums);
    scratch.moments.second = layout.Take<double>(sums);
  }
  scratch.workspace_bytes = layout.size_bytes();
  return scratch;
}

Scratch LayOutBackward(const BatchNormBackwardArgs& args, const BatchNormPlan& plan,
                       void* workspace) {
  WorkspaceLayout layout(workspace);
  Scratch scratch;
  const size_t bytes =
      static_cast<size_t>(args.shape.channels) * DTypeSize(StatisticsDType(args.dtype));
  ChannelCoefficients& c = scratch.coefficients;
  for (void** part :
       {&c.mean, &c.mean_correction, &c.rstd, &c.scale, &c.mean_dy, &c.mean_dy_low, &c.mean_dyh}) {
    *part = layout.TakeBytes(bytes);
  }
  const int64_t sums = args.shape.channels * plan.chunks.chunks;
  // The moments are merged before the gradient sums are written: they share their scratch.
  scratch.gradients.first = layout.Take<double>(sums);
  scratch.gradients.second = layout.Take<double>(sums);
  scratch.gradients.third = layout.Take<double>(sums);
  scratch.moments = scratch.gradients;
  scratch.workspace_bytes = layout.size_bytes();
  return scratch;
}

Status LaunchMoments(const BatchNormPlan& plan, DType dtype, const void* x, double eps,
                     const ChunkSums& moments, StreamHandle stream) {
  norm_device::MomentsParams params = {};
  params.x = x;
  params.means = moments.first;
  params.m2s = moments.second;
  params.shape = plan.shape;
  params.chunks = plan.chunks;
  constexpr double kHidingEps = 1e-20;
  params.smallest_squares = eps < kHidingEps ? 1e-30 : 0.0;
  params.aligned = AllAligned({x});
  const void* kernel = VisitElement(dtype, [&](auto element) {
    return norm_device::MomentsKernel<decltype(element)>(plan.major, plan.owner, plan.granule);
  });
  return Launch(kernel, plan.reduction, params, stream);
}

Status LaunchChannelStatistics(const BatchNormPlan& plan, DType dtype, DType weight_dtype,
                               norm_device::ChannelStatisticsParams params, const Scratch& scratch,
                               StreamHandle stream) {
  params.means = scratch.moments.first;
  params.m2s = scratch.moments.second;
  params.chunks = plan.chunks;
  params.channels = plan.shape.channels;
  params.values = plan.shape.values;
  params.coefficients = scratch.coefficients;
  const void* kernel = VisitElementPair(dtype, weight_dtype, [](auto pair) {
    return norm_device::ChannelStatisticsKernel<decltype(pair)>();
  });
  return Launch(kernel, plan.channels, params, stream);
}

Status LaunchGradientSums(const BatchNormBackwardArgs& args, const BatchNormPlan& plan,
                          const Scratch& scratch, StreamHandle stream) {
  norm_device::GradientSumsParams params = {};
  params.dy = args.dy;
  params.x = args.x;
  params.coefficients = scratch.coefficients;
  params.sums_dy = scratch.gradients.first;
  params.sums_dyd = scratch.gradients.second;
  params.sums_d = scratch.gradients.third;
  params.shape = plan.shape;
  params.chunks = plan.chunks;
  params.aligned = AllAligned({args.dy, args.x});
  const void* kernel = VisitElement(args.dtype, [&](auto element) {
    return norm_device::GradientSumsKernel<decltype(element)>(plan.major, plan.owner, plan.granule);
  });
  return Launch(kernel, plan.reduction, params, stream);
}

Status LaunchChannelGradients(const BatchNormBackwardArgs& args, const BatchNormPlan& plan,
                              const Scratch& scratch, StreamHandle stream) {
  norm_device::ChannelGradientsParams params = {};
  params.sums_dy = scratch.gradients.first;
  params.sums_dyd = scratch.gradients.second;
  params.sums_d = scratch.gradients.third;
  params.chunks = plan.chunks;
  params.channels = plan.shape.channels;
  params.values = plan.shape.values;
  params.coefficients = scratch.coefficients;
  params.dweight = args.dweight;
  params.dbias = args.dbias;
  params.statistics_of_batch = args.mode == BatchNormMode::kTraining;
  const void* kernel = VisitElementPair(args.dtype, args.weight_dtype, [](auto pair) {
    return norm_device::ChannelGradientsKernel<decltype(pair)>();
  });
  return Launch(kernel, plan.channels, params, stream);
}

Status LaunchInputGradient(const BatchNormBackwardArgs& args, const BatchNormPlan& plan,
                           const Scratch& scratch, StreamHandle stream) {
  norm_device::InputGradientParams params = {};
  params.dy = args.dy;
  params.x = args.x;
  params.dx = args.dx;
  params.coefficients = scratch.coefficients;
  params.shape = plan.shape;
  params.segment_values = plan.segment_values;
  params.aligned = AllAligned({args.dy, args.x, args.dx});
  params.statistics_of_batch = args.mode == BatchNormMode::kTraining;
  const void* kernel = VisitElement(args.dtype, [&](auto element) {
    return norm_device::InputGradientKernel<decltype(element)>(plan.major, plan.granule);
  });
  return Launch(kernel, plan.elementwise, params, stream);
}

void TakeStatistics(const BatchNormBackwardArgs& args, bool recompute,
                    norm_device::ChannelStatisticsParams& statistics) {
  const bool training = args.mode == BatchNormMode::kTraining;
  statistics.given_mean = args.mean;
  statistics.given_rstd = args.rstd;
  statistics.running_mean = args.mean;
  statistics.running_var = args.running_var;
  statistics.weight = args.weight;
  statistics.eps = args.eps;
  statistics.source = recompute  ? StatisticsSource::kBatch
                      : training ? StatisticsSource::kGiven
                                 : StatisticsSource::kRunning;
}

}  // namespace

Status ForwardPasses(const BatchNormForwardArgs& args, const DeviceTraits& device,
                     Workspace workspace, StreamHandle stream) {
  const BatchNormPlan plan = PlanBatchNorm(args.shape, args.dtype, device);
  const Scratch scratch = LayOutForward(args, plan, workspace.data);
  const bool training = args.mode == BatchNormMode::kTraining;
  if (training && plan.shape.values > 0) {
    NORM_RETURN_IF_ERROR(
        LaunchMoments(plan, args.dtype, args.x, args.eps, scratch.moments, stream));
  }
  norm_device::ChannelStatisticsParams statistics = {};
  statistics.weight = args.weight;
  statistics.bias = args.bias;
  statistics.running_mean = args.running_mean;
  statistics.running_var = args.running_var;
  statistics.new_running_mean = args.new_running_mean;
  statistics.new_running_var = args.new_running_var;
  statistics.mean = args.mean;
  statistics.rstd = args.rstd;
  statistics.eps = args.eps;
  statistics.momentum = args.momentum;
  statistics.source = training ? StatisticsSource::kBatch : StatisticsSource::kRunning;
  NORM_RETURN_IF_ERROR(
      LaunchChannelStatistics(plan, args.dtype, args.weight_dtype, statistics, scratch, stream));
  if (plan.shape.values == 0) return Status();

  norm_device::NormalizeParams params = {};
  params.x = args.x;
  params.y = args.y;
  params.coefficients = scratch.coefficients;
  params.shape = plan.shape;
  params.segment_values = plan.segment_values;
  params.aligned = AllAligned({args.x, args.y});
  const void* kernel = VisitElement(args.dtype, [&](auto element) {
    return norm_device::NormalizeKernel<decltype(element)>(plan.major, plan.granule);
  });
  return Launch(kernel, plan.elementwise, params, stream);
}

size_t ForwardPassesBytes(const BatchNormForwardArgs& args, const DeviceTraits& device) {
  return LayOutForward(args, PlanBatchNorm(args.shape, args.dtype, device), nullptr)
      .workspace_bytes;
}

Status BackwardPasses(const BatchNormBackwardArgs& args, const DeviceTraits& device,
                      Workspace workspace, StreamHandle stream) {
  const BatchNormPlan plan = PlanBatchNorm(args.shape, args.dtype, device);
  const Scratch scratch = LayOutBackward(args, plan, workspace.data);
  const bool training = args.mode == BatchNormMode::kTraining;
  const bool wants_gradients = args.dweight != nullptr || args.dbias != nullptr;
  if (plan.shape.values == 0) {
    return wants_gradients ? LaunchChannelGradients(args, plan, scratch, stream) : Status();
  }
  const bool recompute = training && args.rstd == nullptr;
  if (recompute) {
    NORM_RETURN_IF_ERROR(
        LaunchMoments(plan, args.dtype, args.x, args.eps, scratch.moments, stream));
  }
  norm_device::ChannelStatisticsParams statistics = {};
  TakeStatistics(args, recompute, statistics);
  NORM_RETURN_IF_ERROR(
      LaunchChannelStatistics(plan, args.dtype, args.weight_dtype, statistics, scratch, stream));
  if (training || wants_gradients) {
    NORM_RETURN_IF_ERROR(LaunchGradientSums(args, plan, scratch, stream));
    NORM_RETURN_IF_ERROR(LaunchChannelGradients(args, plan, scratch, stream));
  }
  return LaunchInputGradient(args, plan, scratch, stream);
}

size_t BackwardPassesBytes(const BatchNormBackwardArgs& args, const DeviceTraits& device) {
  return LayOutBackward(args, PlanBatchNorm(args.shape, args.dtype, device), nullptr)
      .workspace_bytes;
}

Status StatisticsPasses(const BatchNormBackwardArgs& args, const DeviceTraits& device,
                        Workspace workspace, StreamHandle stream, BatchStatistics& result) {
  const BatchNormPlan plan = PlanBatchNorm(args.shape, args.dtype, device);
  const Scratch scratch = LayOutBackward(args, plan, workspace.data);
  NORM_RETURN_IF_ERROR(LaunchMoments(plan, args.dtype, args.x, args.eps, scratch.moments, stream));
  norm_device::ChannelStatisticsParams statistics = {};
  TakeStatistics(args, true, statistics);
  result = {scratch.coefficients.mean, scratch.coefficients.rstd};
  return LaunchChannelStatistics(plan, args.dtype, args.weight_dtype, statistics, scratch, stream);
}

}  // namespace norm::internal
