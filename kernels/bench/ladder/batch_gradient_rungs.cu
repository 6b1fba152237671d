// B6, backward: two passes in two kernels, both passes in one kernel, two phases around a grid
// barrier. All read x and dy twice: dbias = sum dy, dweight = sum dy * h, then
// dx = weight * rstd * (dy - dbias / n - h * dweight / n) with h = (x - mean) * rstd.
#include <cooperative_groups.h>

#include "bench/ladder/rung_moments.cuh"
#include "bench/ladder/rungs_device.h"

namespace norm_device {
namespace {

using Params = ChannelRungParams;

struct Sums {
  float dbias = 0.0f;
  float dweight = 0.0f;
};

/// A value's gradient once the channel's sums are known.
struct Gradient {
  float mean;
  float rstd;
  float scale;
  float mean_dy;
  float mean_term;

  __device__ Gradient(const Params& p, int64_t channel, const Sums& sums) {
    const float n = static_cast<float>(p.batch * p.spatial);
    mean = p.saved_mean[channel];
    rstd = p.saved_rstd[channel];
    scale = p.weight[channel] * rstd;
    mean_dy = sums.dbias / n;
    mean_term = sums.dweight / n;
  }
  __device__ float operator()(float dy, float x) const {
    return scale * fmaf((mean - x) * rstd, mean_term, dy - mean_dy);
  }
};

/// Calls visit(offset) for a thread's share of planes; offsets are of 4 values where vectors fit.
template <typename Visit>
__device__ void ForShare(const Params& p, int64_t channel, int64_t first, int64_t last,
                         int64_t width, Visit visit) {
  for (int64_t image = first; image < last; ++image) {
    const int64_t begin = (image * p.channels + channel) * p.spatial;
    for (int64_t s = threadIdx.x * width; s < p.spatial; s += blockDim.x * width) visit(begin + s);
  }
}

__device__ Sums ShareSums(const Params& p, int64_t channel, int64_t first, int64_t last) {
  const float mean = p.saved_mean[channel];
  const float rstd = p.saved_rstd[channel];
  Sums sums;
  const auto add = [&](float dy, float x) {
    sums.dbias += dy;
    sums.dweight = fmaf(dy, (x - mean) * rstd, sums.dweight);
  };
  if (p.spatial % 4 == 0) {
    ForShare(p, channel, first, last, 4, [&](int64_t i) {
      const float4 dy = *reinterpret_cast<const float4*>(p.dy + i);
      const float4 x = *reinterpret_cast<const float4*>(p.x + i);
      add(dy.x, x.x);
      add(dy.y, x.y);
      add(dy.z, x.z);
      add(dy.w, x.w);
    });
  } else {
    ForShare(p, channel, first, last, 1, [&](int64_t i) { add(p.dy[i], p.x[i]); });
  }
  return sums;
}

__device__ void Apply(const Params& p, int64_t channel, int64_t first, int64_t last,
                      const Sums& sums) {
  const Gradient gradient(p, channel, sums);
  if (p.spatial % 4 == 0) {
    ForShare(p, channel, first, last, 4, [&](int64_t i) {
      const float4 dy = *reinterpret_cast<const float4*>(p.dy + i);
      const float4 x = *reinterpret_cast<const float4*>(p.x + i);
      *reinterpret_cast<float4*>(p.dx + i) = {gradient(dy.x, x.x), gradient(dy.y, x.y),
                                              gradient(dy.z, x.z), gradient(dy.w, x.w)};
    });
  } else {
    ForShare(p, channel, first, last, 1, [&](int64_t i) { p.dx[i] = gradient(p.dy[i], p.x[i]); });
  }
}

__device__ Sums BlockSums(Sums sums, float* slots) {
  const float dbias = BlockSummed(sums.dbias, slots);
  __syncthreads();
  const float dweight = BlockSummed(sums.dweight, slots);
  __syncthreads();
  return {dbias, dweight};
}

__device__ void StoreSums(const Params& p, int64_t channel, const Sums& sums) {
  if (threadIdx.x != 0) return;
  p.dbias[channel] = sums.dbias;
  p.dweight[channel] = sums.dweight;
}

__global__ void Reduce(const __grid_constant__ Params p) {
  __shared__ float slots[32];
  StoreSums(p, blockIdx.x, BlockSums(ShareSums(p, blockIdx.x, 0, p.batch), slots));
}

__global__ void ApplyEach(const __grid_constant__ Params p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.batch * p.channels * p.spatial) return;
  const int64_t channel = i / p.spatial % p.channels;
  const Gradient gradient(p, channel, {p.dbias[channel], p.dweight[channel]});
  p.dx[i] = gradient(p.dy[i], p.x[i]);
}

__global__ void __launch_bounds__(1024) Fused(const __grid_constant__ Params p) {
  __shared__ float slots[32];
  const Sums sums = BlockSums(ShareSums(p, blockIdx.x, 0, p.batch), slots);
  StoreSums(p, blockIdx.x, sums);
  Apply(p, blockIdx.x, 0, p.batch, sums);
}

__global__ void __launch_bounds__(256, 4) Phases(const __grid_constant__ Params p) {
  __shared__ float slots[32];
  const int64_t pieces = p.channels * p.chunks;
  const auto chunk_end = [&](int64_t first) {
    return first + p.images_per_chunk < p.batch ? first + p.images_per_chunk : p.batch;
  };
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const int64_t first = piece % p.chunks * p.images_per_chunk;
    const Sums sums = BlockSums(ShareSums(p, piece / p.chunks, first, chunk_end(first)), slots);
    if (threadIdx.x == 0) {
      p.scratch[2 * piece] = sums.dbias;
      p.scratch[2 * piece + 1] = sums.dweight;
    }
  }
  cooperative_groups::this_grid().sync();
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const int64_t channel = piece / p.chunks;
    Sums sums;
    for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
      sums.dbias += p.scratch[2 * (channel * p.chunks + chunk)];
      sums.dweight += p.scratch[2 * (channel * p.chunks + chunk) + 1];
    }
    const int64_t first = piece % p.chunks * p.images_per_chunk;
    if (first == 0) StoreSums(p, channel, sums);
    Apply(p, channel, first, chunk_end(first), sums);
  }
}

}  // namespace

const void* BatchGradientReduce() { return reinterpret_cast<const void*>(Reduce); }
const void* BatchGradientApply() { return reinterpret_cast<const void*>(ApplyEach); }
const void* BatchGradientFused() { return reinterpret_cast<const void*>(Fused); }
const void* BatchGradientPhases() { return reinterpret_cast<const void*>(Phases); }

}  // namespace norm_device
