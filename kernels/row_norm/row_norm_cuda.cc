#include "row_norm/row_norm_cuda.h"

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "dispatch/dtype_dispatch.h"
#include "dispatch/launch.h"
#include "row_norm/row_norm_block_device.h"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_kind.h"
#include "row_norm/row_norm_quantized_device.h"
#include "row_norm/row_norm_quantized_tuning.h"
#include "row_norm/row_norm_ring_cuda.h"
#include "row_norm/row_norm_ring_tuning.h"
#include "row_norm/row_norm_strip_device.h"
#include "row_norm/row_norm_tuning.h"
#include "validation/argument_checks.h"

namespace norm::internal {
namespace {

using norm_device::RowForwardParams;
using norm_device::RowForwardSegments;
using norm_device::RowLaunchKind;

norm_device::RowOutput DeviceOutput(OutputFormat format) {
  switch (format) {
    case OutputFormat::kSameAsInput:
      break;
    case OutputFormat::kF8E4M3:
      return norm_device::RowOutput::kF8E4M3;
    case OutputFormat::kF8E4M3PerRow:
      return norm_device::RowOutput::kF8E4M3PerRow;
    case OutputFormat::kInt8PerRow:
      return norm_device::RowOutput::kInt8PerRow;
  }
  return norm_device::RowOutput::kInputType;
}

/// Mean squares from here on are normal numbers in f32, or eps hides what they lose; an eps that f32
/// would lose is far below them.
float SmallestSquare(double eps) {
  constexpr double kHidingEps = 1e-20;
  return eps < kHidingEps ? 1e-18F : 0.0F;
}

RowForwardParams DeviceParams(const RowNormForwardArgs& args) {
  RowForwardParams params = {};
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
  params.inverse_size = 1.0 / static_cast<double>(args.hidden_size);
  params.weight_offset = args.weight_offset;
  params.smallest_square = SmallestSquare(args.eps);
  params.row_scale = static_cast<float*>(args.row_scale);
  params.inverse_y_scale = 1.0F / args.y_scale;
  params.output = DeviceOutput(args.output_format);
  params.aligned =
      AllAligned({args.x, args.residual, args.weight, args.bias, args.y, args.residual_sum});
  params.round_normalized = args.rounding == Rounding::kNormalizedFirst;
  params.weight_is_f32 = args.weight_dtype == DType::kF32;
  return params;
}

/// A kernel and the grid for it.
struct RowLaunch {
  RowLaunchKind kind = RowLaunchKind::kSingle;
  LaunchConfig config;
};

LaunchConfig RequestLaunch(const RowForwardPlan& plan, const RowNormForwardArgs& args) {
  LaunchConfig launch = RowForwardLaunch(plan, args.rows);
  if (args.residual != nullptr && plan.residual_shared_bytes > launch.dynamic_shared_bytes) {
    launch.dynamic_shared_bytes = plan.residual_shared_bytes;
  }
  return launch;
}

/// Of a single request.
RowLaunch SingleLaunch(const RowNormForwardArgs& args, const RowForwardParams& params,
                       const RowForwardPlan& plan, DeviceTraits device) {
  const bool plain =
      plan.wide && params.aligned && params.residual == nullptr && !params.round_normalized;
  if (!plain) return {RowLaunchKind::kSingle, RequestLaunch(plan, args)};
  const int few = FewRowsBlocks(plan, args.rows, args.x == args.y, args.dtype, device);
  if (few > 0) {
    return {few > 1 ? RowLaunchKind::kSpreadRows : RowLaunchKind::kFewRows,
            FewRowsLaunch(plan, args.rows, few)};
  }
  const bool rms = args.kind == RowNormKind::kRms;
  const bool lanes =
      norm_device::HasLaneRowsKernel(plan.method, static_cast<int>(DTypeSize(args.dtype)));
  const bool affine = args.weight != nullptr && (rms || args.bias != nullptr);
  const int together = PlainRowsTogether(plan, rms, args.dtype, args.weight_dtype);
  const bool has_kernel = together > 0 && (affine || (rms && !lanes));
  if (!has_kernel) return {RowLaunchKind::kSingle, RequestLaunch(plan, args)};
  return {RowLaunchKind::kPlain, PlainRowsLaunch(plan, args.rows, together)};
}

/// Rows of 16-bit elements.
const void* StripKernel(const RowNormForwardArgs& args, RowLaunchKind launch) {
  const int shape = norm_device::StripShapeOf(args.hidden_size, 0);
  return args.dtype == DType::kF16 ? norm_device::StripForwardKernel<norm_device::F16>(
                                         launch, DeviceKind(args.kind), shape)
                                   : norm_device::StripForwardKernel<norm_device::BF16>(
                                         launch, DeviceKind(args.kind), shape);
}

const void* Kernel(const RowNormForwardArgs& args, const RowForwardPlan& plan,
                   RowLaunchKind launch) {
  if (UsesRing(plan)) return RowRingSegmentsKernel(args, plan);
  if (plan.method == norm_device::RowMethod::kStrips) return StripKernel(args, launch);
  return VisitElementPair(args.dtype, args.weight_dtype, [&](auto pair) {
    using Pair = decltype(pair);
    if constexpr (!std::is_same_v<typename Pair::Activation, norm_device::F64>) {
      if (launch == RowLaunchKind::kPlain && args.kind == RowNormKind::kLayer &&
          (plan.method == norm_device::RowMethod::kBlock ||
           plan.method == norm_device::RowMethod::kBlockLong)) {
        return norm_device::BlockRowsKernel<Pair>(plan.method, plan.threads);
      }
    }
    return norm_device::RowForwardKernel<Pair>(launch, DeviceKind(args.kind), plan.method,
                                               plan.wide);
  });
}

/// Quantized rows that have kernels of their own.
Status LaunchQuantized(const RowNormForwardArgs& args, const QuantizedRowPlan& plan,
                       StreamHandle stream) {
  const void* kernel = VisitElementPair(args.dtype, args.weight_dtype, [&](auto pair) {
    using Pair = decltype(pair);
    if constexpr (std::is_same_v<typename Pair::Activation, norm_device::F64>) {
      return static_cast<const void*>(nullptr);  // Validate refuses it
    } else {
      return norm_device::QuantizedRowKernel<Pair>(DeviceKind(args.kind), plan.method);
    }
  });
  return Launch(kernel, QuantizedRowLaunch(plan, args.rows), DeviceParams(args), stream);
}

/// Collects segments, and launches those that it holds.
class SegmentBatch {
 public:
  SegmentBatch(const RowNormForwardArgs& first, const RowForwardPlan& plan, DeviceTraits device,
               StreamHandle stream)
      : plan_(plan),
        device_(device),
        kernel_(Kernel(first, plan, RowLaunchKind::kSegments)),
        stream_(stream) {
    launch_ = RowForwardLaunch(plan, 1);
  }

  Status Add(const RowNormForwardArgs& args) {
    if (args.rows == 0) return Status();
    if (args.output_format != OutputFormat::kSameAsInput) {
      const auto plan =
          PlanQuantizedRow(DeviceKind(args.kind), args.hidden_size, args.dtype, device_);
      if (plan.has_value()) return LaunchQuantized(args, *plan, stream_);
    }
    if (table_.segments == RowForwardSegments::kMaxSegments) NORM_RETURN_IF_ERROR(Flush());
    // Blocks loop over more rows than these.
    constexpr int64_t kMaxSegmentBlocks = kMaxBlocksX / RowForwardSegments::kMaxSegments;
    const int64_t most = kMaxSegmentBlocks / plan_.cluster_blocks * plan_.cluster_blocks;
    const LaunchConfig alone = RequestLaunch(plan_, args);
    launch_.dynamic_shared_bytes =
        std::max(launch_.dynamic_shared_bytes, alone.dynamic_shared_bytes);
    const int64_t blocks = std::min(alone.blocks_x, most);
    table_.params[table_.segments] = DeviceParams(args);
    table_.first_block[table_.segments + 1] =
        table_.first_block[table_.segments] + static_cast<int32_t>(blocks);
    ++table_.segments;
    return Status();
  }

  Status Flush() {
    if (table_.segments == 0) return Status();
    launch_.blocks_x = table_.first_block[table_.segments];
    NORM_RETURN_IF_ERROR(Launch(kernel_, launch_, table_, stream_));
    table_.segments = 0;
    return Status();
  }

 private:
  RowForwardPlan plan_;
  DeviceTraits device_;
  const void* kernel_;
  StreamHandle stream_;
  LaunchConfig launch_;
  RowForwardSegments table_ = {};
};

}  // namespace

Status RowNormForwardCuda(const RowNormForwardArgs& args, Workspace workspace,
                          StreamHandle stream) {
  NORM_RETURN_IF_ERROR(Validate(args));
  if (args.rows == 0) return Status();
  const Result<DeviceTraits> device = CurrentDeviceTraits();
  NORM_RETURN_IF_ERROR(device.status());
  const bool quantizes = args.output_format != OutputFormat::kSameAsInput;
  const RowForwardPlan plan =
      PlanRowForward(args.hidden_size, args.dtype, device.value(), quantizes);
  if (quantizes) {
    SegmentBatch batch(args, plan, device.value(), stream);
    NORM_RETURN_IF_ERROR(batch.Add(args));
    return batch.Flush();
  }
  const RowForwardParams params = DeviceParams(args);
  if (UsesRing(plan)) return LaunchRowRing(args, plan, params, workspace, stream);
  const RowLaunch launch = SingleLaunch(args, params, plan, device.value());
  return Launch(Kernel(args, plan, launch.kind), launch.config, params, stream);
}

size_t RowNormForwardCudaWorkspaceBytes(const RowNormForwardArgs& args) {
  const Result<DeviceTraits> device = CurrentDeviceTraits();
  if (!device.ok()) return 0;
  const bool quantizes = args.output_format != OutputFormat::kSameAsInput;
  const RowForwardPlan plan =
      PlanRowForward(args.hidden_size, args.dtype, device.value(), quantizes);
  return UsesRing(plan) ? RowRingWorkspaceBytes(args, plan) : 0;
}

template <typename Args>
Status RowNormForwardSegmentsCuda(std::span<const Args> segments, StreamHandle stream) {
  NORM_RETURN_IF_ERROR(ValidateRowSegments(segments));
  if (segments.empty()) return Status();
  const Result<DeviceTraits> device = CurrentDeviceTraits();
  NORM_RETURN_IF_ERROR(device.status());
  const RowNormForwardArgs first = ToRowNorm(segments[0]);
  // Each segment takes the kernel that it takes alone.
  const auto plan = [&](bool quantizes) {
    return PlanRowForward(first.hidden_size, first.dtype, device.value(), quantizes);
  };
  SegmentBatch same_type(first, plan(false), device.value(), stream);
  SegmentBatch quantized(first, plan(true), device.value(), stream);
  for (const Args& segment : segments) {
    const RowNormForwardArgs args = ToRowNorm(segment);
    const bool quantizes = args.output_format != OutputFormat::kSameAsInput;
    NORM_RETURN_IF_ERROR((quantizes ? quantized : same_type).Add(args));
  }
  NORM_RETURN_IF_ERROR(same_type.Flush());
  return quantized.Flush();
}

template Status RowNormForwardSegmentsCuda(std::span<const RmsNormForwardArgs>, StreamHandle);
template Status RowNormForwardSegmentsCuda(std::span<const LayerNormForwardArgs>, StreamHandle);

}  // namespace norm::internal
