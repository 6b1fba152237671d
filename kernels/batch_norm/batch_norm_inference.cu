// BatchNorm inference over planes (NCHW): one elementwise pass over the tensor as a row of granules
// of 16 bytes. A block's loads are on their way while it computes the coefficients of the planes
// that it meets.
#include "batch_norm/batch_norm_inference.h"
#include "batch_norm/batch_norm_ring.cuh"

namespace norm_device {
namespace {

struct alignas(16) InferenceCoefficients {
  float mean;
  float rstd;
  float scale;
  float shift;
};

/// value / divisor and value % divisor from floor((2^64 - 1) / divisor), which is at most 2 short.
__device__ __forceinline__ uint64_t Divide(uint64_t value, uint64_t divisor, uint64_t reciprocal,
                                           uint64_t& remainder) {
  uint64_t quotient = __umul64hi(value, reciprocal);
  remainder = value - quotient * divisor;
  while (remainder >= divisor) {
    remainder -= divisor;
    ++quotient;
  }
  return quotient;
}

__device__ __forceinline__ uint32_t Divide(uint32_t value, uint32_t divisor, uint32_t reciprocal,
                                           uint32_t& remainder) {
  uint32_t quotient = __umulhi(value, reciprocal);
  remainder = value - quotient * divisor;
  while (remainder >= divisor) {
    remainder -= divisor;
    ++quotient;
  }
  return quotient;
}

/// (x - mean) * rstd first, then weight: the product of x and weight may overflow on its own.
__device__ __forceinline__ float Normalize(float value, const InferenceCoefficients& c) {
  return fmaf((value - c.mean) * c.rstd, c.scale, c.shift);
}

template <typename X, bool kWholePlanes, bool kAligned>
__global__ void __launch_bounds__(kInferenceThreads, kInferenceBlocksPerSm)
    PlaneInference(const __grid_constant__ InferenceParams p) {
  constexpr int kElements = WideGranule<X>::kElements;
  constexpr uint32_t kBlockElements = kInferenceBlockGranules * kElements;
  // A plane has at least a granule's elements.
  __shared__ InferenceCoefficients coefficients[kInferenceBlockGranules + 2];
  int s = 0;
  while (s + 1 < p.segment_count && blockIdx.x >= p.segments[s + 1].first_block) ++s;
  const InferenceSegment& segment = p.segments[s];
  const int64_t first = (blockIdx.x - segment.first_block) * kBlockElements;
  const int64_t left = segment.elements - first;
  const char* x = static_cast<const char*>(segment.x) + first * sizeof(StorageOf<X>);
  uint4 raw[kInferenceGranules];
#pragma unroll
  for (int g = 0; g < kInferenceGranules; ++g) {
    const uint32_t granule = g * kInferenceThreads + threadIdx.x;
    if ((granule + 1) * kElements <= left) {
      raw[g] = LoadGranuleWords<X, kAligned>(x + granule * kRingGranuleBytes);
    }
  }

  uint64_t first_position;
  uint64_t first_channel;
  const uint64_t first_plane =
      Divide(static_cast<uint64_t>(first), p.spatial, p.spatial_reciprocal, first_position);
  Divide(first_plane, p.channels, p.channels_reciprocal, first_channel);
  const auto start = static_cast<uint32_t>(first_position);
  const uint32_t planes = (start + kBlockElements - 1) / p.spatial + 1;
  for (uint32_t i = threadIdx.x; i < planes; i += kInferenceThreads) {
    const uint32_t channel = (static_cast<uint32_t>(first_channel) + i) % p.channels;
    InferenceCoefficients c;
    c.mean = segment.running_mean[channel];
    c.rstd = ReciprocalRoot(static_cast<double>(segment.running_var[channel]) + segment.eps);
    c.scale = LoadParameter<X>(segment.weight, channel, p.weight_like_x, 1.0F);
    c.shift = LoadParameter<X>(segment.bias, channel, p.weight_like_x, 0.0F);
    coefficients[i] = c;
    // Written where the channel's first plane starts.
    const bool starts_here = i > 0 || start == 0;
    if (segment.rstd != nullptr && starts_here && first_plane + i < p.channels) {
      segment.rstd[channel] = c.rstd;
    }
  }
  __syncthreads();

  char* y = static_cast<char*>(segment.y) + first * sizeof(StorageOf<X>);
#pragma unroll
  for (int g = 0; g < kInferenceGranules; ++g) {
    const uint32_t granule = g * kInferenceThreads + threadIdx.x;
    if ((granule + 1) * kElements <= left) {
      uint32_t position;
      const uint32_t plane =
          Divide(start + granule * kElements, p.spatial, p.short_reciprocal, position);
      const uint32_t own = p.spatial - position;  // elements left in the plane
      float values[kElements];
      WideGranule<X>::Widen(raw[g], values);
      const InferenceCoefficients a = coefficients[plane];
      if constexpr (kWholePlanes) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) values[i] = Normalize(values[i], a);
      } else {
        const InferenceCoefficients b = coefficients[own < kElements ? plane + 1 : plane];
#pragma unroll
        for (int i = 0; i < kElements; ++i) values[i] = Normalize(values[i], i < own ? a : b);
      }
      StoreGranuleWords<X, kAligned>(y + granule * kRingGranuleBytes,
                                     WideGranule<X>::Narrow(values));
    }
  }
  // The last elements of a tensor that is no whole number of granules.
  const int64_t whole = left / kElements * kElements;
  if (left < kBlockElements && whole + threadIdx.x < left) {
    const auto at = static_cast<uint32_t>(start + whole + threadIdx.x);
    const float value =
        Element<X>::Widen(reinterpret_cast<const StorageOf<X>*>(x)[whole + threadIdx.x]);
    const uint32_t plane = at / p.spatial;
    const float normalized = Normalize(value, coefficients[plane]);
    reinterpret_cast<StorageOf<X>*>(y)[whole + threadIdx.x] = Element<X>::Narrow(normalized);
  }
}

}  // namespace

template <typename X>
const void* PlaneInferenceKernel(bool whole_planes, bool aligned) {
  if (whole_planes) {
    return aligned ? reinterpret_cast<const void*>(&PlaneInference<X, true, true>)
                   : reinterpret_cast<const void*>(&PlaneInference<X, true, false>);
  }
  return aligned ? reinterpret_cast<const void*>(&PlaneInference<X, false, true>)
                 : reinterpret_cast<const void*>(&PlaneInference<X, false, false>);
}

template const void* PlaneInferenceKernel<F32>(bool, bool);
template const void* PlaneInferenceKernel<F16>(bool, bool);
template const void* PlaneInferenceKernel<BF16>(bool, bool);

}  // namespace norm_device
