// What row forward writes: y from the held row and its statistics, in the type of x or quantized.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "primitives/packed_granule.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_statistics.cuh"

namespace norm_device {

template <RowKind kKind, typename C>
__device__ void StoreStatistics(const RowForwardParams& p, int64_t row, const RowStats<C>& stats) {
  if (kKind == RowKind::kLayer && p.mean != nullptr) {
    static_cast<C*>(p.mean)[row] = stats.mean + stats.mean_correction;
  }
  if (p.rstd != nullptr) static_cast<C*>(p.rstd)[row] = stats.rstd;
}

/// weight and bias applied to normalized values.
template <typename Pair, RowKind kKind, int V>
struct RowAffine {
  using X = typename Pair::Activation;
  using W = typename Pair::Weight;
  using C = ComputeOf<X>;

  const RowForwardParams& p;
  C weight_offset;

  __device__ explicit RowAffine(const RowForwardParams& params)
      : p(params), weight_offset(static_cast<C>(params.weight_offset)) {}

  /// y in the compute type, of the elements of x from `column` on.
  __device__ void At(const PackedGranule<X, V>& x, int64_t column, const RowStats<C>& stats,
                     C (&y)[V]) const {
    C scale[V];
    C shift[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      scale[i] = C(1);
      shift[i] = C(0);
    }
    if (p.weight != nullptr) {
      const auto weight = PackedGranule<W, V>::LoadConstant(
          static_cast<const StorageOf<W>*>(p.weight) + column, p.aligned);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        scale[i] = static_cast<C>(weight.Wide(i));
        if (kKind == RowKind::kRms) scale[i] += weight_offset;
      }
    }
    if (kKind == RowKind::kLayer && p.bias != nullptr) {
      const auto bias = PackedGranule<W, V>::LoadConstant(
          static_cast<const StorageOf<W>*>(p.bias) + column, p.aligned);
#pragma unroll
      for (int i = 0; i < V; ++i) shift[i] = static_cast<C>(bias.Wide(i));
    }
#pragma unroll
    for (int i = 0; i < V; ++i) y[i] = Centred<kKind>(x.Wide(i), stats) * stats.rstd;
    if constexpr (sizeof(StorageOf<X>) < sizeof(C)) {
      if (p.round_normalized) {
        const auto rounded = PackedGranule<X, V>::Rounded(y);
#pragma unroll
        for (int i = 0; i < V; ++i) y[i] = rounded.Wide(i);
      }
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      y[i] = kKind == RowKind::kLayer ? fma(y[i], scale[i], shift[i]) : y[i] * scale[i];
    }
  }
};

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

template <typename Pair, RowKind kKind, int V, bool kQuantizes>
class RowOutputWriter {
 public:
  using X = typename Pair::Activation;
  using C = ComputeOf<X>;
  static constexpr bool kCanQuantize = kQuantizes && std::is_same_v<C, float>;

  __device__ explicit RowOutputWriter(const RowForwardParams& params)
      : p_(params), affine_(params) {}

  /// Writes one row. for_each(visit) calls visit(column, granule of x) for every granule of the
  /// thread, as often as it is called; `first`: this thread writes what there is once per row.
  template <typename ForEach, typename Owner>
  __device__ void Write(const ForEach& for_each, int64_t row, bool first, const RowStats<C>& stats,
                        Owner& owner) const {
    if constexpr (kCanQuantize) {
      if (p_.output != RowOutput::kInputType) {
        WriteQuantized(for_each, row, first, stats, owner);
        return;
      }
    }
    StorageOf<X>* y = static_cast<StorageOf<X>*>(p_.y) + row * p_.hidden_size;
    for_each([&](auto column, const PackedGranule<X, V>& x) {
      C values[V];
      affine_.At(x, column, stats, values);
      PackedGranule<X, V>::Rounded(values).Store(y + column, p_.aligned);
    });
  }

 private:
  template <typename ForEach, typename Owner>
  __device__ void WriteQuantized(const ForEach& for_each, int64_t row, bool first,
                                 const RowStats<C>& stats, Owner& owner) const {
    const bool int8 = p_.output == RowOutput::kInt8PerRow;
    float inverse_scale = p_.inverse_y_scale;
    if (p_.output != RowOutput::kF8E4M3) {
      // As bits, magnitudes are ordered like integers, with infinity and NaN above all others.
      uint32_t largest = 0;
      for_each([&](auto column, const PackedGranule<X, V>& x) {
        C values[V];
        affine_.At(x, column, stats, values);
#pragma unroll
        for (int i = 0; i < V; ++i) {
          largest = max(largest, __float_as_uint(values[i]) & 0x7fffffffU);
        }
      });
      largest = owner.Max(largest);
      float scale = __uint_as_float(largest) / (int8 ? kLargestInt8 : kLargestF8E4M3);
      if (scale < kSmallestRowScale) scale = 0.0F;
      inverse_scale = scale == 0.0F ? 0.0F : 1.0F / scale;
      if (first) p_.row_scale[row] = scale;
    }
    uint8_t* y = static_cast<uint8_t*>(p_.y) + row * p_.hidden_size;
    for_each([&](auto column, const PackedGranule<X, V>& x) {
      C values[V];
      affine_.At(x, column, stats, values);
#pragma unroll
      for (int i = 0; i < V; ++i) values[i] *= inverse_scale;
      const auto narrow = int8 ? QuantizeInt8(values) : QuantizeF8(values);
      if (p_.aligned) {
        *reinterpret_cast<QuantizedGranule<V>*>(y + column) = narrow;
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i) y[column + i] = narrow.values[i];
      }
    });
  }

  const RowForwardParams& p_;
  RowAffine<Pair, kKind, V> affine_;
};

}  // namespace norm_device
