// L1 to L6: y = (x - mean) * rstd * weight + bias. L1 to L4 read x twice, L5 and L6 once; L6 also adds
// a residual, which otherwise costs a kernel that moves 12 bytes per element.
#include "bench/ladder/rung_moments.cuh"
#include "bench/ladder/rungs_device.h"

namespace norm_device {
namespace {

using Params = RowRungParams;

__device__ float Rstd(float m2, const Params& p) {
  return 1.0f / sqrtf(m2 / static_cast<float>(p.hidden_size) + p.eps);
}

__device__ float Normalized(const Params& p, float x, int64_t h, float mean, float rstd) {
  return fmaf((x - mean) * rstd, p.weight[h], p.bias[h]);
}

__global__ void ThreadPerRow(const __grid_constant__ Params p) {
  const float* x = p.x + blockIdx.x * p.hidden_size;
  float* y = p.y + blockIdx.x * p.hidden_size;
  const float shift = RowShift(x, p.hidden_size);
  // A sum of sums of 32: one running sum over a long row loses digits.
  RowSums sums;
  for (int64_t begin = 0; begin < p.hidden_size; begin += 32) {
    RowSums piece;
    for (int64_t h = begin; h < p.hidden_size && h < begin + 32; ++h) piece.Add(x[h] - shift);
    sums.Add(piece);
  }
  const RowMoments moments(sums, shift, p.hidden_size);
  const float rstd = Rstd(moments.m2, p);
  for (int64_t h = 0; h < p.hidden_size; ++h) y[h] = Normalized(p, x[h], h, moments.mean, rstd);
}

__global__ void SharedTree(const __grid_constant__ Params p) {
  __shared__ RowSums partial[kTreeThreads];
  const float* x = p.x + blockIdx.x * p.hidden_size;
  float* y = p.y + blockIdx.x * p.hidden_size;
  const float shift = RowShift(x, p.hidden_size);
  RowSums sums;
  for (int64_t h = threadIdx.x; h < p.hidden_size; h += kTreeThreads) sums.Add(x[h] - shift);
  partial[threadIdx.x] = sums;
  __syncthreads();
  for (unsigned half = kTreeThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x].Add(partial[threadIdx.x + half]);
    __syncthreads();
  }
  const RowMoments moments(partial[0], shift, p.hidden_size);
  const float rstd = Rstd(moments.m2, p);
  for (int64_t h = threadIdx.x; h < p.hidden_size; h += kTreeThreads) {
    y[h] = Normalized(p, x[h], h, moments.mean, rstd);
  }
}

__global__ void WarpShuffle(const __grid_constant__ Params p) {
  __shared__ RowSums slots[32];
  const float* x = p.x + blockIdx.x * p.hidden_size;
  float* y = p.y + blockIdx.x * p.hidden_size;
  const float shift = RowShift(x, p.hidden_size);
  RowSums sums;
  for (int64_t h = threadIdx.x; h < p.hidden_size; h += blockDim.x) sums.Add(x[h] - shift);
  const RowMoments moments(BlockSums(sums, slots), shift, p.hidden_size);
  const float rstd = Rstd(moments.m2, p);
  for (int64_t h = threadIdx.x; h < p.hidden_size; h += blockDim.x) {
    y[h] = Normalized(p, x[h], h, moments.mean, rstd);
  }
}

/// Four parameters; `values + h` need not be aligned.
__device__ float4 Parameters(const float* values, int64_t h) {
  if (h % 4 == 0) return *reinterpret_cast<const float4*>(values + h);
  return {values[h], values[h + 1], values[h + 2], values[h + 3]};
}

__device__ float4 Normalized4(const Params& p, float4 x, int64_t h, float mean, float rstd) {
  const float4 weight = Parameters(p.weight, h);
  const float4 bias = Parameters(p.bias, h);
  return {fmaf((x.x - mean) * rstd, weight.x, bias.x), fmaf((x.y - mean) * rstd, weight.y, bias.y),
          fmaf((x.z - mean) * rstd, weight.z, bias.z), fmaf((x.w - mean) * rstd, weight.w, bias.w)};
}

__global__ void Vector(const __grid_constant__ Params p) {
  __shared__ RowSums slots[32];
  const int64_t begin = blockIdx.x * p.hidden_size;
  const float* x = p.x + begin;
  float* y = p.y + begin;
  // x and y start at 16-byte boundaries, so their rows are off by the same number of elements.
  const int64_t to_boundary = (4 - begin % 4) % 4;
  const int64_t head = to_boundary < p.hidden_size ? to_boundary : p.hidden_size;
  const int64_t vectors = (p.hidden_size - head) / 4;
  const int64_t tail = head + 4 * vectors;
  const auto* x4 = reinterpret_cast<const float4*>(x + head);
  auto* y4 = reinterpret_cast<float4*>(y + head);
  // Fewer than 4 elements on either side of the vectors.
  const int64_t loose = head + (p.hidden_size - tail);
  const int64_t mine = threadIdx.x < head ? threadIdx.x : tail + threadIdx.x - head;

  const float shift = RowShift(x, p.hidden_size);
  RowSums sums;
  if (threadIdx.x < loose) sums.Add(x[mine] - shift);
  for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x) {
    const float4 value = x4[v];
    sums.Add(value.x - shift);
    sums.Add(value.y - shift);
    sums.Add(value.z - shift);
    sums.Add(value.w - shift);
  }
  const RowMoments moments(BlockSums(sums, slots), shift, p.hidden_size);
  const float rstd = Rstd(moments.m2, p);
  if (threadIdx.x < loose) y[mine] = Normalized(p, x[mine], mine, moments.mean, rstd);
  for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x) {
    y4[v] = Normalized4(p, x4[v], head + 4 * v, moments.mean, rstd);
  }
}

/// The row in registers: mean first, then squares of distances from it, exactly as defined.
template <int kVectors, bool kResidual>
__global__ void Registers(const __grid_constant__ Params p) {
  __shared__ float sum_slots[32];
  __shared__ float square_slots[32];
  const int64_t begin = blockIdx.x * p.hidden_size;
  const int64_t vectors = p.hidden_size / 4;
  const auto* x4 = reinterpret_cast<const float4*>(p.x + begin);
  auto* y4 = reinterpret_cast<float4*>(p.y + begin);
  float4 row[kVectors];
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int64_t v = threadIdx.x + static_cast<int64_t>(k) * blockDim.x;
    if (v >= vectors) continue;
    row[k] = x4[v];
    if constexpr (kResidual) {
      const float4 other = reinterpret_cast<const float4*>(p.residual + begin)[v];
      row[k] = {row[k].x + other.x, row[k].y + other.y, row[k].z + other.z, row[k].w + other.w};
      reinterpret_cast<float4*>(p.residual_sum + begin)[v] = row[k];
    }
    sum += (row[k].x + row[k].y) + (row[k].z + row[k].w);
  }
  const float mean = BlockSummed(sum, sum_slots) / static_cast<float>(p.hidden_size);
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int64_t v = threadIdx.x + static_cast<int64_t>(k) * blockDim.x;
    if (v >= vectors) continue;
    const float4 d = {row[k].x - mean, row[k].y - mean, row[k].z - mean, row[k].w - mean};
    squares += fmaf(d.x, d.x, d.y * d.y) + fmaf(d.z, d.z, d.w * d.w);
  }
  const float rstd = Rstd(BlockSummed(squares, square_slots), p);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int64_t v = threadIdx.x + static_cast<int64_t>(k) * blockDim.x;
    if (v < vectors) y4[v] = Normalized4(p, row[k], 4 * v, mean, rstd);
  }
}

template <bool kResidual>
const void* RegistersFor(int vectors_per_thread) {
  switch (vectors_per_thread) {
    case 1:
      return reinterpret_cast<const void*>(Registers<1, kResidual>);
    case 2:
      return reinterpret_cast<const void*>(Registers<2, kResidual>);
    case 3:
      return reinterpret_cast<const void*>(Registers<3, kResidual>);
    case kMaxVectorsPerThread:
      return reinterpret_cast<const void*>(Registers<kMaxVectorsPerThread, kResidual>);
    default:
      return nullptr;
  }
}

__global__ void Add(const __grid_constant__ Params p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t count = p.rows * p.hidden_size;
  if (4 * i + 4 <= count) {
    const float4 a = reinterpret_cast<const float4*>(p.x)[i];
    const float4 b = reinterpret_cast<const float4*>(p.residual)[i];
    reinterpret_cast<float4*>(p.residual_sum)[i] = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  } else {
    for (int64_t k = 4 * i; k < count; ++k) p.residual_sum[k] = p.x[k] + p.residual[k];
  }
}

}  // namespace

const void* LayerThreadPerRow() { return reinterpret_cast<const void*>(ThreadPerRow); }
const void* LayerSharedTree() { return reinterpret_cast<const void*>(SharedTree); }
const void* LayerWarpShuffle() { return reinterpret_cast<const void*>(WarpShuffle); }
const void* LayerVector() { return reinterpret_cast<const void*>(Vector); }
const void* LayerRegisters(int vectors_per_thread) {
  return RegistersFor<false>(vectors_per_thread);
}
const void* LayerFusedResidual(int vectors_per_thread) {
  return RegistersFor<true>(vectors_per_thread);
}
const void* AddResidual() { return reinterpret_cast<const void*>(Add); }

}  // namespace norm_device
