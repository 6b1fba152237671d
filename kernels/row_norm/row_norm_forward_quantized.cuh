// Row forward with a quantized y: one byte per element, f8e4m3 or int8.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "primitives/packed_granule.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_forward_output.cuh"

namespace norm_device {

/// V bytes of y.
template <int V>
struct alignas(V) QuantizedGranule {
  uint8_t values[V];
};

/// To the nearest f8e4m3, ties to even; past the largest finite value that value; a NaN stays one.
template <int V>
__device__ QuantizedGranule<V> QuantizeF8(const float (&values)[V]) {
  QuantizedGranule<V> out;
  if constexpr (V == 1) {
    out.values[0] = __nv_cvt_float_to_fp8(values[0], __NV_SATFINITE, __NV_E4M3);
  } else {
#pragma unroll
    for (int i = 0; i < V; i += 2) {
      const __nv_fp8x2_storage_t two = __nv_cvt_float2_to_fp8x2(
          make_float2(values[i], values[i + 1]), __NV_SATFINITE, __NV_E4M3);
      out.values[i] = static_cast<uint8_t>(two & 0xffU);
      out.values[i + 1] = static_cast<uint8_t>(two >> 8);
    }
  }
  return out;
}

/// To the nearest of -127..127, ties to even. A NaN becomes 0.
template <int V>
__device__ QuantizedGranule<V> QuantizeInt8(const float (&values)[V]) {
  QuantizedGranule<V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int rounded = max(-127, min(127, __float2int_rn(values[i])));
    out.values[i] = static_cast<uint8_t>(static_cast<int8_t>(rounded));
  }
  return out;
}

/// The factor that quantizes the row's y: of the request, or from the row's largest magnitude, which
/// `largest()` returns as bits, the same for all threads of the row. `first`: this thread stores the
/// row's scale.
template <typename Largest>
__device__ float QuantizationFactor(const RowForwardParams& p, int64_t row, bool first,
                                    Largest&& largest) {
  if (p.output == RowOutput::kF8E4M3) return p.inverse_y_scale;
  const float most = p.output == RowOutput::kInt8PerRow ? kLargestInt8 : kLargestF8E4M3;
  const float magnitude = __uint_as_float(largest());
  const bool finite = isfinite(magnitude);
  float scale = finite ? magnitude / most : magnitude;
  if (scale < kSmallestRowScale) scale = 0.0F;
  if (first) p.row_scale[row] = scale;
  if (!finite) return __int_as_float(0x7fffffff);
  return scale == 0.0F ? 0.0F : 1.0F / scale;
}

/// As bits, magnitudes are ordered like integers, with infinity and NaN above all others.
template <int V>
__device__ void TakeLargest(const float (&values)[V], uint32_t& largest) {
#pragma unroll
  for (int i = 0; i < V; ++i) largest = max(largest, __float_as_uint(values[i]) & 0x7fffffffU);
}

/// `at_once`: y is a multiple of V.
template <int V>
__device__ void StoreQuantized(const RowForwardParams& p, uint8_t* y, bool at_once,
                               const float (&values)[V], float factor) {
  float scaled[V];
#pragma unroll
  for (int i = 0; i < V; ++i) scaled[i] = values[i] * factor;
  const QuantizedGranule<V> narrow =
      p.output == RowOutput::kInt8PerRow ? QuantizeInt8(scaled) : QuantizeF8(scaled);
  if (at_once) {
    *reinterpret_cast<QuantizedGranule<V>*>(y) = narrow;
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) y[i] = narrow.values[i];
  }
}

/// Calls visit(column, y) for every granule of a held row.
template <typename Pair, RowKind kKind, typename X, int V, int kGranules, typename Owner,
          typename Visit>
__device__ void ForEachFloat(const RowForwardParams& p, const HeldRow<X, V, kGranules, Owner>& row,
                             const RowAffine<Pair, kKind>& affine,
                             const RowNormalizer<kKind, X>& normalize, Visit&& visit) {
  const auto held = [&](int g, int column, const float(&values)[V]) {
    if (row.Holds(g)) visit(column, values);
  };
  if (affine.template CanFetchAtOnce<V>(p.aligned) && !affine.round_normalized()) {
    ForEachOutput<true>(p, row, affine, normalize, held);
  } else {
    ForEachOutput<false>(p, row, affine, normalize, held);
  }
}

template <typename Pair, RowKind kKind, typename X, int V, int kGranules, typename Owner,
          typename Visit>
__device__ void ForEachFloat(const RowForwardParams& p, const SplitRow<X, V, kGranules, Owner>& row,
                             const RowAffine<Pair, kKind>& affine,
                             const RowNormalizer<kKind, X>& normalize, Visit&& visit) {
  ForEachFloat(p, row.main, affine, normalize, visit);
  ForEachFloat(p, row.extra, affine, normalize, visit);
}

/// Writes the quantized y of a held row.
template <RowKind kKind, typename Pair, typename Row, typename Owner>
__device__ void WriteQuantizedRow(const RowForwardParams& p, const Row& row, int64_t row_index,
                                  bool first, const RowAffine<Pair, kKind>& affine,
                                  const RowStats<float>& stats, Owner& owner) {
  const RowNormalizer<kKind, typename Pair::Activation> normalize(stats);
  const float factor = QuantizationFactor(p, row_index, first, [&] {
    uint32_t largest = 0;
    ForEachFloat(p, row, affine, normalize,
                 [&](int, const auto& values) { TakeLargest(values, largest); });
    return owner.Max(largest);
  });
  uint8_t* y = static_cast<uint8_t*>(p.y) + row_index * p.hidden_size;
  ForEachFloat(p, row, affine, normalize, [&](int column, const auto& values) {
    // Columns of a thread's granules are multiples of their size.
    constexpr uintptr_t kV = std::extent_v<std::remove_reference_t<decltype(values)>>;
    StoreQuantized(p, y + column, reinterpret_cast<uintptr_t>(y) % kV == 0, values, factor);
  });
}

}  // namespace norm_device
