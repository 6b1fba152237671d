#include "batch_norm/batch_norm_inference_cuda.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "batch_norm/batch_norm_inference_plan.h"
#include "batch_norm/batch_norm_ring_cuda.h"
#include "dispatch/launch.h"

namespace norm::internal {
namespace {

using norm_device::InferenceChannels;
using norm_device::PlaneInferenceParams;
using norm_device::PlaneInferenceSegment;

/// What both directions make of a tensor.
struct Request {
  BatchNormShape shape;
  DType dtype;
  DType weight_dtype;
  const void* source;
  void* destination;
  InferenceChannels channels;

  bool IsAligned() const { return IsGranuleAligned(source) && IsGranuleAligned(destination); }
};

InferenceChannels Channels(const void* running_var, const void* weight, double eps) {
  InferenceChannels channels = {};
  channels.variance = static_cast<const float*>(running_var);
  channels.weight = weight;
  channels.eps = norm_device::MakeInferenceEps(eps);
  return channels;
}

Request ToRequest(const BatchNormForwardArgs& args) {
  Request request = {args.shape, args.dtype, args.weight_dtype,
                     args.x,     args.y,     Channels(args.running_var, args.weight, args.eps)};
  request.channels.mean = static_cast<const float*>(args.running_mean);
  request.channels.bias = args.bias;
  request.channels.rstd = static_cast<float*>(args.rstd);
  return request;
}

/// dx = dy * rstd * weight
Request ToRequest(const BatchNormBackwardArgs& args) {
  return {args.shape, args.dtype, args.weight_dtype,
          args.dy,    args.dx,    Channels(args.running_var, args.weight, args.eps)};
}

bool HasPlan(const BatchNormShape& shape, DType dtype) {
  return PlanPlaneInference(shape, dtype).has_value() ||
         PlanRowInference(shape, dtype, false).has_value();
}

Status LaunchRowInference(const Request& request, const RowInferencePlan& plan,
                          StreamHandle stream) {
  norm_device::RowInferenceParams params = {};
  params.source = request.source;
  params.destination = request.destination;
  params.channels = request.channels;
  params.rows = request.shape.batch * request.shape.spatial;
  params.channel_count = static_cast<uint32_t>(request.shape.channels);
  params.column_bits = static_cast<uint32_t>(plan.column_bits);
  params.slices = static_cast<uint32_t>(plan.slices);
  params.by_slices = norm_device::MakeDivisor(params.slices);
  params.weight_like_x = request.weight_dtype == request.dtype;
  const void* kernel = RingKernel(request.dtype, [&](auto x) {
    return norm_device::RowInferenceKernel<decltype(x)>(plan.wide, plan.tall);
  });
  return Launch(kernel, plan.launch, params, stream);
}

/// The parts of a tensor, whole images each, appended. Only the first writes rstd.
void AppendParts(const Request& request, const PlaneInferencePlan& plan,
                 std::vector<PlaneInferenceSegment>& parts) {
  const int64_t image = request.shape.channels * request.shape.spatial;
  for (int64_t first = 0; first < request.shape.batch; first += plan.part_images) {
    const int64_t offset = first * image * static_cast<int64_t>(DTypeSize(request.dtype));
    PlaneInferenceSegment part = {};
    part.source = static_cast<const char*>(request.source) + offset;
    part.destination = static_cast<char*>(request.destination) + offset;
    part.channels = request.channels;
    if (first > 0) part.channels.rstd = nullptr;
    part.elements =
        static_cast<uint32_t>(std::min(plan.part_images, request.shape.batch - first) * image);
    parts.push_back(part);
  }
}

Status LaunchPlaneInference(const Request& first, const PlaneInferencePlan& plan,
                            std::span<PlaneInferenceSegment> parts, StreamHandle stream) {
  const bool aligned =
      std::all_of(parts.begin(), parts.end(), [](const PlaneInferenceSegment& part) {
        return IsGranuleAligned(part.source) && IsGranuleAligned(part.destination);
      });
  const bool over_images = aligned && plan.image_blocks > 0;
  const void* kernel = RingKernel(first.dtype, [&](auto x) {
    return over_images ? norm_device::ImageInferenceKernel<decltype(x)>()
                       : norm_device::PlaneInferenceKernel<decltype(x)>(plan.whole_planes, aligned);
  });
  PlaneInferenceParams params = {};
  params.channels = static_cast<uint32_t>(first.shape.channels);
  params.spatial = static_cast<uint32_t>(first.shape.spatial);
  params.image = params.channels * params.spatial;
  params.by_spatial = norm_device::MakeDivisor(params.spatial);
  params.by_image = norm_device::MakeDivisor(params.image);
  params.image_blocks = static_cast<uint32_t>(plan.image_blocks);
  params.by_image_blocks = norm_device::MakeDivisor(params.image_blocks);
  params.weight_like_x = first.weight_dtype == first.dtype;
  while (!parts.empty()) {
    const size_t count = std::min<size_t>(parts.size(), norm_device::kInferenceSegments);
    LaunchConfig launch;
    launch.threads_x = over_images ? norm_device::kImageThreads : norm_device::kPlaneThreads;
    launch.blocks_y = static_cast<int64_t>(count);
    for (size_t i = 0; i < count; ++i) {
      params.segments[i] = parts[i];
      const int64_t blocks =
          over_images ? ((parts[i].elements / params.image - 1) / plan.images_of_block + 1) *
                            plan.image_blocks
                      : PlaneInferenceBlocks(parts[i].elements, first.dtype);
      launch.blocks_x = std::max(launch.blocks_x, blocks);
    }
    NORM_RETURN_IF_ERROR(Launch(kernel, launch, params, stream));
    parts = parts.subspan(count);
  }
  return Status();
}

template <typename Args>
Status LaunchAll(std::span<const Args> segments, StreamHandle stream) {
  const Request first = ToRequest(segments.front());
  const std::optional<PlaneInferencePlan> planes = PlanPlaneInference(first.shape, first.dtype);
  if (planes.has_value()) {
    std::vector<PlaneInferenceSegment> parts;
    for (const Args& args : segments) AppendParts(ToRequest(args), *planes, parts);
    return LaunchPlaneInference(first, *planes, parts, stream);
  }
  for (const Args& args : segments) {
    const Request request = ToRequest(args);
    const std::optional<RowInferencePlan> rows =
        PlanRowInference(request.shape, request.dtype, request.IsAligned());
    NORM_RETURN_IF_ERROR(LaunchRowInference(request, *rows, stream));
  }
  return Status();
}

}  // namespace

bool TakesInference(const BatchNormForwardArgs& args) {
  return args.mode == BatchNormMode::kInference && HasPlan(args.shape, args.dtype);
}

bool TakesInference(const BatchNormBackwardArgs& args) {
  return args.mode == BatchNormMode::kInference && args.dweight == nullptr &&
         args.dbias == nullptr && HasPlan(args.shape, args.dtype);
}

Status LaunchInference(std::span<const BatchNormForwardArgs> segments, StreamHandle stream) {
  return LaunchAll(segments, stream);
}

Status LaunchInference(std::span<const BatchNormBackwardArgs> segments, StreamHandle stream) {
  return LaunchAll(segments, stream);
}

}  // namespace norm::internal
