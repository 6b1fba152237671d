// B6, forward: base (reduce, then normalize), fused and vectorized, Welford in stages. All read x
// twice; they differ in launches, width and how many blocks share a channel. A channel is one run of
// `spatial` values per image, never assumed contiguous over images.
#include "bench/ladder/rung_moments.cuh"
#include "bench/ladder/rungs_device.h"

namespace norm_device {
namespace {

using Params = ChannelRungParams;

__device__ const float* Plane(const Params& p, const float* tensor, int64_t image,
                              int64_t channel) {
  return tensor + (image * p.channels + channel) * p.spatial;
}
__device__ float* Plane(const Params& p, float* tensor, int64_t image, int64_t channel) {
  return tensor + (image * p.channels + channel) * p.spatial;
}
/// Whether every plane starts at a 16-byte boundary.
__device__ bool Vectors(const Params& p) { return p.spatial % 4 == 0; }

__device__ float Rstd(const Params& p, const RungMoments& moments) {
  return 1.0f / sqrtf(moments.m2 / moments.count + p.eps);
}

/// Moments of a thread's share of images [first, last) of a channel.
__device__ RungMoments Share(const Params& p, int64_t channel, int64_t first, int64_t last) {
  ShiftedSums sums;
  for (int64_t image = first; image < last; ++image) {
    const float* x = Plane(p, p.x, image, channel);
    if (Vectors(p)) {
      const auto* x4 = reinterpret_cast<const float4*>(x);
      for (int64_t v = threadIdx.x; v < p.spatial / 4; v += blockDim.x) {
        const float4 value = x4[v];
        sums.Add(value.x);
        sums.Add(value.y);
        sums.Add(value.z);
        sums.Add(value.w);
      }
    } else {
      for (int64_t s = threadIdx.x; s < p.spatial; s += blockDim.x) sums.Add(x[s]);
    }
  }
  return sums.Moments();
}

/// y = x * scale + shift would round differently far from zero: the mean is taken off first.
__device__ void Normalize(const Params& p, int64_t channel, int64_t first, int64_t last, float mean,
                          float rstd) {
  const float scale = rstd * p.weight[channel];
  const float bias = p.bias[channel];
  for (int64_t image = first; image < last; ++image) {
    const float* x = Plane(p, p.x, image, channel);
    float* y = Plane(p, p.y, image, channel);
    if (Vectors(p)) {
      for (int64_t v = threadIdx.x; v < p.spatial / 4; v += blockDim.x) {
        const float4 value = reinterpret_cast<const float4*>(x)[v];
        reinterpret_cast<float4*>(y)[v] = {
            fmaf(value.x - mean, scale, bias), fmaf(value.y - mean, scale, bias),
            fmaf(value.z - mean, scale, bias), fmaf(value.w - mean, scale, bias)};
      }
    } else {
      for (int64_t s = threadIdx.x; s < p.spatial; s += blockDim.x) {
        y[s] = fmaf(x[s] - mean, scale, bias);
      }
    }
  }
}

__global__ void Reduce(const __grid_constant__ Params p) {
  __shared__ RungMoments slots[32];
  const int64_t channel = blockIdx.x;
  ShiftedSums sums;
  for (int64_t image = 0; image < p.batch; ++image) {
    const float* x = Plane(p, p.x, image, channel);
    for (int64_t s = threadIdx.x; s < p.spatial; s += blockDim.x) sums.Add(x[s]);
  }
  const RungMoments moments = BlockMerged(sums.Moments(), slots);
  if (threadIdx.x == 0) {
    p.scratch[2 * channel] = moments.mean;
    p.scratch[2 * channel + 1] = Rstd(p, moments);
  }
}

__global__ void NormalizeEach(const __grid_constant__ Params p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.batch * p.channels * p.spatial) return;
  const int64_t channel = i / p.spatial % p.channels;
  p.y[i] = fmaf((p.x[i] - p.scratch[2 * channel]) * p.scratch[2 * channel + 1], p.weight[channel],
                p.bias[channel]);
}

__global__ void __launch_bounds__(1024) Fused(const __grid_constant__ Params p) {
  __shared__ RungMoments slots[32];
  const int64_t channel = blockIdx.x;
  const RungMoments moments = BlockMerged(Share(p, channel, 0, p.batch), slots);
  Normalize(p, channel, 0, p.batch, moments.mean, Rstd(p, moments));
}

/// Images of the block's chunk.
__device__ void Chunk(const Params& p, int64_t chunk, int64_t& first, int64_t& last) {
  first = chunk * p.images_per_chunk;
  last = first + p.images_per_chunk < p.batch ? first + p.images_per_chunk : p.batch;
}

__global__ void PartialMoments(const __grid_constant__ Params p) {
  __shared__ RungMoments slots[32];
  const int64_t channel = blockIdx.y;
  int64_t first = 0;
  int64_t last = 0;
  Chunk(p, blockIdx.x, first, last);
  const RungMoments moments = BlockMerged(Share(p, channel, first, last), slots);
  if (threadIdx.x == 0) {
    float* partial = p.scratch + (channel * p.chunks + blockIdx.x) * kPartialFloats;
    partial[0] = moments.count;
    partial[1] = moments.mean;
    partial[2] = moments.m2;
  }
}

__global__ void NormalizeChunk(const __grid_constant__ Params p) {
  const int64_t channel = blockIdx.y;
  RungMoments moments;
  for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
    const float* partial = p.scratch + (channel * p.chunks + chunk) * kPartialFloats;
    moments = Merged(moments, {partial[0], partial[1], partial[2]});
  }
  int64_t first = 0;
  int64_t last = 0;
  Chunk(p, blockIdx.x, first, last);
  Normalize(p, channel, first, last, moments.mean, Rstd(p, moments));
}

}  // namespace

const void* BatchReduce() { return reinterpret_cast<const void*>(Reduce); }
const void* BatchNormalize() { return reinterpret_cast<const void*>(NormalizeEach); }
const void* BatchFused() { return reinterpret_cast<const void*>(Fused); }
const void* BatchPartialMoments() { return reinterpret_cast<const void*>(PartialMoments); }
const void* BatchNormalizeChunk() { return reinterpret_cast<const void*>(NormalizeChunk); }

}  // namespace norm_device
