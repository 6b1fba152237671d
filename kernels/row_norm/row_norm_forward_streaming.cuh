// RMSNorm and LayerNorm forward of rows that registers do not hold: a block reads the row again,
// from cache where that is large enough, in each pass.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/dependent_launch.cuh"
#include "primitives/element_access.cuh"
#include "primitives/packed_granule.cuh"
#include "primitives/row_owner.cuh"
#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_forward.cuh"
#include "row_norm/row_norm_forward_output.cuh"
#include "row_norm/row_norm_forward_quantized.cuh"
#include "row_norm/row_norm_statistics.cuh"

namespace norm_device {

/// x, or x + residual rounded to the type of x and stored as the sum.
template <typename X, int V>
__device__ Granule<X, V> LoadInput(const RowForwardParams& p, int64_t offset) {
  Granule<X, V> x = LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.x) + offset, p.aligned);
  if (p.residual != nullptr) {
    const auto residual =
        LoadGranule<X, V>(static_cast<const StorageOf<X>*>(p.residual) + offset, p.aligned);
#pragma unroll
    for (int i = 0; i < V; ++i) x.values[i] = Element<X>::Narrow(x.Wide(i) + residual.Wide(i));
    StoreGranule<X, V>(static_cast<StorageOf<X>*>(p.residual_sum) + offset, x, p.aligned);
  }
  return x;
}

template <RowLaunchKind kLaunch, typename Pair, RowKind kKind, int V>
__global__ void __launch_bounds__(kStreamingThreads)
    RowForwardStreaming(const __grid_constant__ typename RowLaunchParams<kLaunch>::Type launch) {
  using X = typename Pair::Activation;
  using C = ComputeOf<X>;
  using Launch = RowLaunchParams<kLaunch>;
  __shared__ BlockRow::Scratch scratch;
  __shared__ BlockOwner::Scratch owner_scratch;
  AllowDependentLaunch();
  AwaitPreviousLaunch();
  BlockRow summing;
  BlockOwner owner(owner_scratch);
  int first_block = 0;
  int blocks = static_cast<int>(gridDim.x);
  const RowForwardParams& p =
      Launch::Request(launch, static_cast<int>(blockIdx.x), first_block, blocks);
  const RowAffine<Pair, kKind> affine(p);
  // After the first pass the normalized values are those of the sum that this thread wrote itself.
  const auto* input =
      static_cast<const StorageOf<X>*>(p.residual != nullptr ? p.residual_sum : p.x);

  for (int64_t row = static_cast<int>(blockIdx.x) - first_block; row < p.rows; row += blocks) {
    const int64_t row_offset = row * p.hidden_size;
    const RowStats<C> stats = StreamedRowStats<kKind, X, V>(
        [&](int64_t column) { return LoadInput<X, V>(p, row_offset + column); }, input + row_offset,
        summing, scratch, p.hidden_size, p.aligned, p.eps);
    if (threadIdx.x == 0) StoreStatistics<kKind>(p, row, stats);
    const RowNormalizer<kKind, X> normalize(stats);
    const auto for_each = [&](auto&& visit) {
      const int64_t step = static_cast<int64_t>(blockDim.x) * V;
      for (int64_t column = static_cast<int64_t>(threadIdx.x) * V; column < p.hidden_size;
           column += step) {
        const auto words = affine.template Fetch<V>(column, true, V == 1 || p.aligned);
        C values[V];
        affine.template Apply<V>(
            PackedGranule<X, V>::Load(input + row_offset + column, V == 1 || p.aligned), words,
            normalize, affine.round_normalized(), values);
        visit(column, values);
      }
    };
    if constexpr (Launch::kQuantizes && std::is_same_v<C, float>) {
      if (p.output != RowOutput::kInputType) {
        const float factor = QuantizationFactor(p, row, threadIdx.x == 0, [&] {
          uint32_t largest = 0;
          for_each([&](int64_t, const C(&values)[V]) { TakeLargest(values, largest); });
          return owner.Max(largest);
        });
        uint8_t* y = static_cast<uint8_t*>(p.y) + row_offset;
        for_each([&](int64_t column, const C(&values)[V]) {
          StoreQuantized(p, y + column, p.aligned, values, factor);
        });
        continue;
      }
    }
    StorageOf<X>* y = static_cast<StorageOf<X>*>(p.y) + row_offset;
    for_each([&](int64_t column, const C(&values)[V]) {
      PackedGranule<X, V>::Rounded(values).Store(y + column, p.aligned);
    });
  }
}

}  // namespace norm_device
