#include "batch_norm/batch_norm_inference_cuda.h"

#include <algorithm>
#include <limits>

#include "batch_norm/batch_norm_inference.h"
#include "batch_norm/batch_norm_ring_cuda.h"
#include "dispatch/launch.h"

namespace norm::internal {
namespace {

using norm_device::InferenceParams;
using norm_device::InferenceSegment;
using norm_device::kRingGranuleBytes;
using norm_device::kRingSegments;

InferenceSegment ToSegment(const BatchNormForwardArgs& args) {
  InferenceSegment segment = {};
  segment.x = args.x;
  segment.y = args.y;
  segment.weight = args.weight;
  segment.bias = args.bias;
  segment.running_mean = static_cast<const float*>(args.running_mean);
  segment.running_var = static_cast<const float*>(args.running_var);
  segment.rstd = static_cast<float*>(args.rstd);
  segment.eps = args.eps;
  segment.elements = args.shape.batch * args.shape.channels * args.shape.spatial;
  return segment;
}

int64_t Blocks(const BatchNormForwardArgs& args) {
  const int64_t bytes = args.shape.batch * args.shape.channels * args.shape.spatial *
                        static_cast<int64_t>(DTypeSize(args.dtype));
  constexpr int64_t kBlockBytes = int64_t{norm_device::kInferenceBlockGranules} * kRingGranuleBytes;
  return (bytes + kBlockBytes - 1) / kBlockBytes;
}

}  // namespace

bool TakesPlaneInference(const BatchNormForwardArgs& args) {
  const BatchNormShape& shape = args.shape;
  constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();
  return args.mode == BatchNormMode::kInference && args.dtype != DType::kF64 &&
         shape.layout == BatchNormLayout::kNchw && shape.batch > 0 && shape.spatial > 1 &&
         shape.spatial * static_cast<int64_t>(DTypeSize(args.dtype)) >= kRingGranuleBytes &&
         shape.spatial <= kMaxExtent && shape.channels <= kMaxExtent && Blocks(args) <= kMaxBlocksX;
}

Status LaunchPlaneInference(std::span<const BatchNormForwardArgs> segments, StreamHandle stream) {
  const BatchNormForwardArgs& first = segments.front();
  const bool whole_planes =
      first.shape.spatial * static_cast<int64_t>(DTypeSize(first.dtype)) % kRingGranuleBytes == 0;
  const bool aligned =
      std::all_of(segments.begin(), segments.end(), [](const BatchNormForwardArgs& args) {
        return IsGranuleAligned(args.x) && IsGranuleAligned(args.y);
      });
  const void* kernel = RingKernel(first.dtype, [&](auto x) {
    return norm_device::PlaneInferenceKernel<decltype(x)>(whole_planes, aligned);
  });
  while (!segments.empty()) {
    InferenceParams params = {};
    params.channels = static_cast<uint32_t>(first.shape.channels);
    params.spatial = static_cast<uint32_t>(first.shape.spatial);
    params.channels_reciprocal = std::numeric_limits<uint64_t>::max() / params.channels;
    params.spatial_reciprocal = std::numeric_limits<uint64_t>::max() / params.spatial;
    params.short_reciprocal = std::numeric_limits<uint32_t>::max() / params.spatial;
    params.weight_like_x = first.weight_dtype == first.dtype;
    LaunchConfig launch;
    launch.threads_x = norm_device::kInferenceThreads;
    launch.blocks_x = 0;
    size_t count = 0;
    while (count < std::min<size_t>(segments.size(), kRingSegments) &&
           launch.blocks_x + Blocks(segments[count]) <= kMaxBlocksX) {
      InferenceSegment& segment = params.segments[count];
      segment = ToSegment(segments[count]);
      segment.first_block = launch.blocks_x;
      launch.blocks_x += Blocks(segments[count]);
      ++count;
    }
    params.segment_count = static_cast<int32_t>(count);
    NORM_RETURN_IF_ERROR(Launch(kernel, launch, params, stream));
    segments = segments.subspan(count);
  }
  return Status();
}

}  // namespace norm::internal
