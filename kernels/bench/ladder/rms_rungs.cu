// R0 to R2: y = x * rstd * weight, x read twice, 12 bytes moved per element where the second read
// misses the caches.
#include "bench/ladder/rungs_device.h"

namespace norm_device {
namespace {

using Params = RowRungParams;

__device__ float Rstd(float squares, const Params& p) {
  return 1.0f / sqrtf(squares / static_cast<float>(p.hidden_size) + p.eps);
}

/// Neighbouring threads read addresses hidden_size apart: every access is its own memory transaction.
__global__ void ThreadPerRow(const __grid_constant__ Params p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= p.rows) return;
  const float* x = p.x + row * p.hidden_size;
  float* y = p.y + row * p.hidden_size;
  // Four sums, since one running sum over a long row loses digits.
  float squares[4] = {};
  int64_t h = 0;
  for (; h + 4 <= p.hidden_size; h += 4) {
    for (int k = 0; k < 4; ++k) squares[k] = fmaf(x[h + k], x[h + k], squares[k]);
  }
  for (; h < p.hidden_size; ++h) squares[0] = fmaf(x[h], x[h], squares[0]);
  const float rstd = Rstd((squares[0] + squares[1]) + (squares[2] + squares[3]), p);
  for (h = 0; h < p.hidden_size; ++h) y[h] = x[h] * rstd * p.weight[h];
}

/// Lanes read neighbouring addresses; the sum stays in registers.
__global__ void WarpPerRow(const __grid_constant__ Params p) {
  const int64_t warps = blockDim.x / 32;
  const int64_t row = blockIdx.x * warps + threadIdx.x / 32;
  if (row >= p.rows) return;
  const unsigned lane = threadIdx.x % 32;
  const float* x = p.x + row * p.hidden_size;
  float* y = p.y + row * p.hidden_size;
  float squares = 0.0f;
  for (int64_t h = lane; h < p.hidden_size; h += 32) squares = fmaf(x[h], x[h], squares);
  for (int offset = 16; offset > 0; offset /= 2) {
    squares += __shfl_down_sync(0xffffffffu, squares, offset);
  }
  const float rstd = __shfl_sync(0xffffffffu, Rstd(squares, p), 0);
  for (int64_t h = lane; h < p.hidden_size; h += 32) y[h] = x[h] * rstd * p.weight[h];
}

/// More threads a row; the sum goes through shared memory, a barrier a step.
__global__ void BlockPerRow(const __grid_constant__ Params p) {
  __shared__ float sums[kTreeThreads];
  const float* x = p.x + blockIdx.x * p.hidden_size;
  float* y = p.y + blockIdx.x * p.hidden_size;
  float squares = 0.0f;
  for (int64_t h = threadIdx.x; h < p.hidden_size; h += kTreeThreads)
    squares = fmaf(x[h], x[h], squares);
  sums[threadIdx.x] = squares;
  __syncthreads();
  for (unsigned half = kTreeThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  const float rstd = Rstd(sums[0], p);
  for (int64_t h = threadIdx.x; h < p.hidden_size; h += kTreeThreads) {
    y[h] = x[h] * rstd * p.weight[h];
  }
}

}  // namespace

const void* RmsThreadPerRow() { return reinterpret_cast<const void*>(ThreadPerRow); }
const void* RmsWarpPerRow() { return reinterpret_cast<const void*>(WarpPerRow); }
const void* RmsBlockPerRow() { return reinterpret_cast<const void*>(BlockPerRow); }

}  // namespace norm_device
