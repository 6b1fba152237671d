// Mean and variance in one pass. The write-ups' E[x^2] - E[x]^2 cancels where the mean is far from
// zero; here values are shifted first: rows by the average of their first values, so that sums of all
// threads just add up; channels by each thread's own first value, threads merged by Chan's formula.
#pragma once

#include <cstdint>

namespace norm_device {

/// Sums of distances from a value near the mean. With the average of m values of a row of n as that
/// value, cancellation costs at most a factor n / m, whatever the row.
struct RowSums {
  float sum = 0.0f;
  float squares = 0.0f;

  __device__ void Add(float distance) {
    sum += distance;
    squares = fmaf(distance, distance, squares);
  }
  __device__ void Add(const RowSums& other) {
    sum += other.sum;
    squares += other.squares;
  }
};

__device__ inline float RowShift(const float* x, int64_t n) {
  if (n < 8) return x[0];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += x[i];
  return sum * 0.125f;
}

/// Mean and sum of squared distances from it.
struct RowMoments {
  float mean;
  float m2;

  __device__ RowMoments(const RowSums& sums, float shift, int64_t n) {
    const float from_shift = sums.sum / static_cast<float>(n);
    mean = shift + from_shift;
    m2 = fmaxf(sums.squares - sums.sum * from_shift, 0.0f);
  }
};

/// Every thread gets the block's sums: shuffles in a warp, one slot a warp, one barrier.
__device__ inline RowSums BlockSums(RowSums sums, RowSums* slots) {
  for (int offset = 16; offset > 0; offset /= 2) {
    sums.sum += __shfl_down_sync(0xffffffffu, sums.sum, offset);
    sums.squares += __shfl_down_sync(0xffffffffu, sums.squares, offset);
  }
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = sums;
  __syncthreads();
  RowSums all;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) all.Add(slots[warp]);
  return all;
}

struct RungMoments {
  float count = 0.0f;
  float mean = 0.0f;
  float m2 = 0.0f;  // sum of squared distances from the mean
};

__device__ inline RungMoments Merged(const RungMoments& a, const RungMoments& b) {
  const float count = a.count + b.count;
  if (count == 0.0f) return a;
  const float delta = b.mean - a.mean;
  const float share = b.count / count;
  return {count, a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.count * share};
}

/// Sums of distances from a first value.
struct ShiftedSums {
  float shift = 0.0f;
  float count = 0.0f;
  float sum = 0.0f;
  float squares = 0.0f;

  __device__ void Add(float value) {
    if (count == 0.0f) shift = value;
    const float d = value - shift;
    count += 1.0f;
    sum += d;
    squares = fmaf(d, d, squares);
  }
  __device__ RungMoments Moments() const {
    if (count == 0.0f) return {};
    const float mean = sum / count;
    return {count, shift + mean, fmaxf(squares - sum * mean, 0.0f)};
  }
};

__device__ inline RungMoments WarpMerged(RungMoments moments) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const RungMoments other = {__shfl_down_sync(0xffffffffu, moments.count, offset),
                               __shfl_down_sync(0xffffffffu, moments.mean, offset),
                               __shfl_down_sync(0xffffffffu, moments.m2, offset)};
    moments = Merged(moments, other);
  }
  return moments;  // lane 0 has them all
}

/// Every thread of the block gets the block's moments. One slot a warp, whole warps.
__device__ inline RungMoments BlockMerged(RungMoments moments, RungMoments* slots) {
  moments = WarpMerged(moments);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = moments;
  __syncthreads();
  RungMoments all = slots[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) all = Merged(all, slots[warp]);
  return all;
}

__device__ inline float WarpSum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, offset);
  }
  return value;
}

/// Every thread gets the block's sum; slots are reused only after another barrier.
__device__ inline float BlockSummed(float value, float* slots) {
  value = WarpSum(value);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  float all = 0.0f;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) all += slots[warp];
  return all;
}

}  // namespace norm_device
