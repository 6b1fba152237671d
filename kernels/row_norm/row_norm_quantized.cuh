// RMSNorm and LayerNorm forward with a quantized y, the row in registers. Rows of moderate numbers,
// nearly all, take a short way: statistics from one exchange, for RMSNorm together with the largest
// magnitude. Others are read again and reduced in f64. Which way a row takes depends on its own data
// and the request's numbers only.
#pragma once

#include <cstdint>

#include "primitives/byte_formats.cuh"
#include "primitives/moments.cuh"
#include "primitives/row_owner.cuh"
#include "row_norm/row_norm_quantized_device.h"
#include "row_norm/row_norm_quantized_row.cuh"

namespace norm_device {

/// Far enough from the ends of f32 that products of a few such numbers are normal.
__device__ inline bool IsModerate(float magnitude) {
  return magnitude > 0x1p-30F && magnitude < 0x1p30F;
}

template <typename Pair, RowKind kKind, typename Owner>
class QuantizedRowWriter {
 public:
  using Row = QuantizedRow<Pair, kKind, Owner>;
  static constexpr int V = Row::V;
  static constexpr int kGranules = Row::kGranules;

  __device__ QuantizedRowWriter(const RowForwardParams& p, Owner& owner)
      : p_(p),
        owner_(owner),
        inverse_size_(static_cast<float>(p.inverse_size)),
        weight_offset_(static_cast<float>(p.weight_offset)),
        largest_code_(p.output == RowOutput::kInt8PerRow ? Int8::kLargest : F8E4M3::kLargest),
        scales_rows_(p.output != RowOutput::kF8E4M3),
        moderate_(p.eps < 0x1p30 && !p.round_normalized &&
                  (scales_rows_ || IsModerate(p.inverse_y_scale))) {}

  /// The short way; false, and nothing written, where the row or the request does not allow it.
  /// `first`: this thread writes what there is once per row.
  __device__ bool WriteModerate(const Row& row, int64_t index, bool first) {
    if constexpr (kKind == RowKind::kRms) {
      return WriteModerateRms(row, index, first);
    } else {
      return WriteModerateLayer(row, index, first);
    }
  }

  /// Any row. All threads take part in its exchanges; those without `writes` write nothing.
  __device__ void WriteAny(const Row& row, int64_t index, bool first, bool writes) {
    double mean = 0.0;
    if constexpr (kKind == RowKind::kLayer) {
      double sum[1] = {0.0};
      ForEachHeld(row, [&](int g, int i) { sum[0] += static_cast<double>(row.At(g, i)); });
      owner_.Sum(sum);
      mean = sum[0] * p_.inverse_size;
    }
    double squares[2] = {0.0, 0.0};
    ForEachHeld(row, [&](int g, int i) {
      const double deviation = static_cast<double>(row.At(g, i)) - mean;
      squares[0] += deviation;
      squares[1] = fma(deviation, deviation, squares[1]);
    });
    owner_.Sum(squares);
    if constexpr (kKind == RowKind::kLayer) mean += squares[0] * p_.inverse_size;
    const double rstd = ReciprocalDeviation(squares[1] * p_.inverse_size, p_.eps);

    // Computed again instead of kept: registers are for the short way.
    const auto compute = [&](int g, const auto& weights, const auto& biases, float(&y)[V]) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        y[i] = static_cast<float>((static_cast<double>(row.At(g, i)) - mean) * rstd);
      }
      if (p_.round_normalized) {
        const auto rounded = Row::Granule::Rounded(y);
#pragma unroll
        for (int i = 0; i < V; ++i) y[i] = rounded.Wide(i);
      }
#pragma unroll
      for (int i = 0; i < V; ++i) {
        y[i] = Affine(y[i], weights.Wide(i), kKind == RowKind::kLayer ? biases.Wide(i) : 0.0F);
      }
    };
    float factor = p_.inverse_y_scale;
    if (scales_rows_) {
      float largest = 0.0F;
      row.ForEachWeights([&](int g, const auto& weights, const auto& biases) {
        float y[V];
        compute(g, weights, biases, y);
#pragma unroll
        for (int i = 0; i < V; ++i) {
          if (row.Holds(g)) largest = MaxMagnitude(largest, y[i]);
        }
      });
      factor = FactorOfRow(MaxOfRow(largest), index, first && writes);
    }
    if (!writes) return;
    if (first) StoreStatistics(index, static_cast<float>(mean), static_cast<float>(rstd));
    row.ForEachWeights([&](int g, const auto& weights, const auto& biases) {
      float y[V];
      compute(g, weights, biases, y);
      if (p_.output == RowOutput::kInt8PerRow) {
        row.template Store<Int8>(g, factor, y);
      } else {
        row.template Store<F8E4M3>(g, factor, y);
      }
    });
  }

 private:
  /// y = rstd * t with t = x * weight, so y / row_scale = t * (largest code / largest |t|).
  __device__ bool WriteModerateRms(const Row& row, int64_t index, bool first) {
    float products[kGranules][V];
    float squares[kChains] = {};
    float thread_largest = 0.0F;
    row.ForEachWeights([&](int g, const auto& weights, const auto&) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float x = row.At(g, i);
        squares[i % kChains] = fmaf(x, x, squares[i % kChains]);
        products[g][i] = x * (weights.Wide(i) + weight_offset_);
        thread_largest = MaxMagnitude(thread_largest, products[g][i]);
      }
    });
    float sum[1] = {TotalOf(squares)};
    uint32_t largest_bits = __float_as_uint(thread_largest);
    owner_.SumAndMax(sum, largest_bits);
    const float largest = __uint_as_float(largest_bits);
    const float mean_square = sum[0] * inverse_size_;
    if (!(IsModerate(largest) && IsModerate(mean_square) && moderate_)) return false;

    float factor = __fdividef(largest_code_, largest);
    if (first || !scales_rows_) {
      const float rstd = ReciprocalDeviation(mean_square, p_.eps);
      if (!scales_rows_) factor = rstd * p_.inverse_y_scale;
      if (first) {
        StoreStatistics(index, 0.0F, rstd);
        if (scales_rows_) p_.row_scale[index] = largest * rstd / largest_code_;
      }
    }
    StoreCodes(row, factor, products);
    return true;
  }

  /// Mean and variance from the sums of elements and squares, which is accurate while the mean is not
  /// many times the deviation.
  __device__ bool WriteModerateLayer(const Row& row, int64_t index, bool first) {
    constexpr float kMostMeanSquare = 4.0F;  // in units of the variance
    float y[kGranules][V];
    float sum[kChains] = {};
    float squares[kChains] = {};
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        y[g][i] = row.At(g, i);
        sum[i % kChains] += y[g][i];
        squares[i % kChains] = fmaf(y[g][i], y[g][i], squares[i % kChains]);
      }
    }
    float sums[2] = {TotalOf(sum), TotalOf(squares)};
    owner_.Sum(sums);
    const float mean = sums[0] * inverse_size_;
    const float mean_square = mean * mean;
    const float variance = fmaf(sums[1], inverse_size_, -mean_square);
    const bool moderate =
        IsModerate(variance) && mean_square <= kMostMeanSquare * variance && moderate_;
    // Rows that share a warp stay together until their last exchange.
    if (!Owner::AnyRow(moderate)) return false;
    const float rstd = ReciprocalDeviation(variance, p_.eps);
    const float scaled_mean = -mean * rstd;
    float thread_largest = 0.0F;
    row.ForEachWeights([&](int g, const auto& weights, const auto& biases) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        y[g][i] = Affine(fmaf(y[g][i], rstd, scaled_mean), weights.Wide(i), biases.Wide(i));
        if (row.Holds(g)) thread_largest = MaxMagnitude(thread_largest, y[g][i]);
      }
    });
    float factor = p_.inverse_y_scale;
    if (scales_rows_) factor = FactorOfRow(MaxOfRow(thread_largest), index, first && moderate);
    if (!moderate) return false;
    if (first) StoreStatistics(index, mean, rstd);
    StoreCodes(row, factor, y);
    return true;
  }

  __device__ float Affine(float normalized, float weight, float bias) const {
    if constexpr (kKind == RowKind::kLayer) return fmaf(normalized, weight, bias);
    return normalized * (weight + weight_offset_);
  }

  /// As bits, since a maximum of floats may lose a NaN: magnitudes are ordered like integers, with
  /// infinity and NaN above all others.
  __device__ float MaxOfRow(float largest) {
    return __uint_as_float(owner_.Max(__float_as_uint(largest)));
  }

  /// What y of a row with this largest |y| is multiplied by: 0 for zeros, NaN where it is not finite.
  __device__ float FactorOfRow(float largest, int64_t index, bool stores) const {
    float scale = largest / largest_code_;
    float factor = 1.0F / scale;
    if (scale < kSmallestRowScale) {
      scale = 0.0F;
      factor = 0.0F;
    }
    if (!isfinite(scale)) factor = __uint_as_float(0x7FFFFFFFU);
    if (stores) p_.row_scale[index] = scale;
    return factor;
  }

  __device__ void StoreCodes(const Row& row, float factor, const float (&y)[kGranules][V]) const {
    if (p_.output == RowOutput::kInt8PerRow) {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) row.template Store<Int8>(g, factor, y[g]);
    } else {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) row.template Store<F8E4M3>(g, factor, y[g]);
    }
  }

  __device__ void StoreStatistics(int64_t index, float mean, float rstd) const {
    if (kKind == RowKind::kLayer && p_.mean != nullptr) static_cast<float*>(p_.mean)[index] = mean;
    if (p_.rstd != nullptr) static_cast<float*>(p_.rstd)[index] = rstd;
  }

  template <typename Visit>
  __device__ static void ForEachHeld(const Row& row, Visit&& visit) {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      if (row.Holds(g)) {
#pragma unroll
        for (int i = 0; i < V; ++i) visit(g, i);
      }
    }
  }

  static constexpr int kChains = 4;  // independent sums of a thread
  __device__ static float TotalOf(const float (&chains)[kChains]) {
    return (chains[0] + chains[1]) + (chains[2] + chains[3]);
  }

  const RowForwardParams& p_;
  Owner& owner_;
  float inverse_size_;
  float weight_offset_;
  float largest_code_;
  bool scales_rows_;
  bool moderate_;
};

/// Registers of a thread: x waits beside the f32 values of 16-bit elements, and lies in their place
/// with f32. Fewer spill, with more there are too few loads in flight.
template <typename X>
inline constexpr int kQuantizedRowRegisters = sizeof(StorageOf<X>) == 2 ? 64 : 80;

/// Writes a row again, the long way. A call, so that its registers do not burden the short way; the
/// owner comes back as the next exchange needs it.
template <typename Pair, RowKind kKind, typename Owner>
__device__ __noinline__ Owner WriteAnyRow(const RowForwardParams& p, Owner owner, int64_t index,
                                          bool writes) {
  QuantizedRow<Pair, kKind, Owner> row(p, owner, index);
  row.Reload();
  QuantizedRowWriter<Pair, kKind, Owner>(p, owner).WriteAny(row, index, owner.IsFirstThread(),
                                                            writes);
  return owner;
}

template <typename Pair, RowKind kKind, typename Owner>
__global__ void __maxnreg__(kQuantizedRowRegisters<typename Pair::Activation>)
    RowForwardQuantized(const __grid_constant__ RowForwardParams p) {
  __shared__ typename Owner::Scratch scratch;
  Owner owner(scratch);
  QuantizedRowWriter<Pair, kKind, Owner> writer(p, owner);
  const int rows_per_block = Owner::rows_per_block();
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * rows_per_block;
  for (int64_t block_row = static_cast<int64_t>(blockIdx.x) * rows_per_block; block_row < p.rows;
       block_row += row_step) {
    const int64_t index = block_row + Owner::row_in_block();
    const bool exists = index < p.rows;
    const bool first = exists && owner.IsFirstThread();
    QuantizedRow<Pair, kKind, Owner> row(p, owner, index);
    row.Load();
    const bool written = writer.WriteModerate(row, index, first);
    // Lanes that share a warp stay together.
    if (Owner::AnyRow(exists && !written)) {
      owner = WriteAnyRow<Pair, kKind>(p, owner, index, exists && !written);
    }
  }
}

template <typename Pair, RowKind kKind>
const void* SelectQuantizedRow(QuantizedRowMethod method) {
  switch (method) {
    case QuantizedRowMethod::kLanes8:
      return reinterpret_cast<const void*>(&RowForwardQuantized<Pair, kKind, LaneRow<8>>);
    case QuantizedRowMethod::kLanes16:
      return reinterpret_cast<const void*>(&RowForwardQuantized<Pair, kKind, LaneRow<16>>);
    case QuantizedRowMethod::kWarp:
      return reinterpret_cast<const void*>(&RowForwardQuantized<Pair, kKind, LaneRow<32>>);
    case QuantizedRowMethod::kBlock:
      return reinterpret_cast<const void*>(&RowForwardQuantized<Pair, kKind, BlockOwner>);
  }
  return nullptr;
}

template <typename Pair>
const void* QuantizedRowKernel(RowKind kind, QuantizedRowMethod method) {
  return kind == RowKind::kRms ? SelectQuantizedRow<Pair, RowKind::kRms>(method)
                               : SelectQuantizedRow<Pair, RowKind::kLayer>(method);
}

}  // namespace norm_device
