// Sums over a row that many warps of a cluster read once, exact enough for mean and variance to
// come out of one exchange.
//
// LayerNorm: a thread takes the deviations of a few dozen values from the middle one of three of
// them in f32 and continues in f64, each step relative to a value of its own; totals are moved to a
// common shift in f64. Deviations from a member of the group are at most about as large as its
// spread allows, and the middle one is no outlier unless two of the three are, so neither a large
// mean nor an outlier costs precision. bf16 values need no shift: sums and squares of a group are
// exact in f32 unless the group's spread is of the order of its values.
// RMSNorm: sums of squares.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/moments.cuh"
#include "primitives/packed_granule.cuh"
#include "primitives/row_reduce.cuh"
#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_ring_shape.h"

namespace norm_device {

template <RowKind kKind, typename X>
class RingSums {
 public:
  static constexpr bool kShifted = kKind == RowKind::kLayer && !std::is_same_v<X, BF16>;
  static constexpr bool kHasSum = kKind == RowKind::kLayer;
  static constexpr int kPartBytes = kShifted ? 24 : kHasSum ? 16 : 8;  // as sent

  /// Adds the first kPresent granules.
  template <int kPresent, int V, int kGranules>
  __device__ void Add(const PackedGranule<X, V> (&x)[kGranules]) {
    if constexpr (kPresent > 0) {
      const float shift =
          kShifted ? Middle(x[0].Wide(0), x[kPresent / 2].Wide(V / 2), x[kPresent - 1].Wide(V - 1))
                   : 0.0F;
      float sums[2] = {0.0F, 0.0F};
      float squares[2] = {0.0F, 0.0F};
#pragma unroll
      for (int g = 0; g < kPresent; ++g) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const float value = kShifted ? x[g].Wide(i) - shift : x[g].Wide(i);
          if (kHasSum) sums[i % 2] += value;
          squares[i % 2] = fmaf(value, value, squares[i % 2]);
        }
      }
      AddGroup(shift, static_cast<float>(kPresent * V), static_cast<double>(sums[0] + sums[1]),
               static_cast<double>(squares[0] + squares[1]));
    }
  }

  /// As Add of one granule, in f64.
  template <int V>
  __device__ void AddWide(const PackedGranule<X, V>& x) {
    const float first = kShifted ? x.Wide(0) : 0.0F;
    double sum = 0.0;
    double squares = 0.0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const double value = static_cast<double>(x.Wide(i)) - static_cast<double>(first);
      sum += value;
      squares = fma(value, value, squares);
    }
    AddGroup(first, static_cast<float>(V), sum, squares);
  }

  /// Adds up over the warp and sends the total to every block of the cluster, to the place of
  /// `part` there. kWide: of f64 sums.
  template <bool kWide>
  __device__ void Publish(RingPart* part, const TransferBarrier& arrived, int blocks) {
    const int lane = threadIdx.x % kWarpThreads;
    if constexpr (kShifted) {
      const float warp_shift = __shfl_sync(0xffffffffU, shift_, 0);
      if (count_ > 0.0F) MoveTo(warp_shift);
      shift_ = warp_shift;
      float counts[1] = {count_};
      LaneSum<kWarpThreads>(counts);
      count_ = counts[0];
    }
    if constexpr (kHasSum) {
      // Half of the lanes add sums up, the others squares.
      const bool upper = lane >= kWarpThreads / 2;
      double half[1] = {upper ? squares_ : sum_};
      half[0] += __shfl_xor_sync(0xffffffffU, upper ? sum_ : squares_, kWarpThreads / 2);
      LaneSum<kWarpThreads / 2>(half);
      sum_ = __shfl_sync(0xffffffffU, half[0], 0);
      squares_ = __shfl_sync(0xffffffffU, half[0], kWarpThreads / 2);
    } else {
      // f32 sums, of f32 sums.
      std::conditional_t<kWide, double, float> total[1];
      total[0] = static_cast<std::remove_reference_t<decltype(total[0])>>(squares_);
      LaneSum<kWarpThreads>(total);
      squares_ = static_cast<double>(total[0]);
    }
    if (lane < blocks) {
      SendToPeer(&part->squares, arrived, lane, Bits(squares_));
      if (kHasSum) SendToPeer(&part->sum, arrived, lane, Bits(sum_));
      if (kShifted) {
        SendToPeer(&part->shift, arrived, lane,
                   static_cast<uint64_t>(__float_as_uint(count_)) << 32 | __float_as_uint(shift_));
      }
    }
  }

  /// Adds up what the warps of a cluster sent. By one warp; all its lanes get the same bits.
  __device__ void Gather(const RingPart* parts, int count) {
    const int lane = threadIdx.x % kWarpThreads;
    shift_ = kShifted ? parts[0].shift : 0.0F;
    sum_ = squares_ = 0.0;
    for (int i = lane; i < count; i += kWarpThreads) {
      RingSums part;
      part.squares_ = parts[i].squares;
      if (kHasSum) part.sum_ = parts[i].sum;
      if (kShifted) {
        part.shift_ = parts[i].shift;
        part.count_ = parts[i].count;
        part.MoveTo(shift_);
      }
      sum_ += part.sum_;
      squares_ += part.squares_;
    }
    double totals[2] = {squares_, sum_};
    if (kHasSum) {
      LaneSum<kWarpThreads>(totals);
    } else {
      double squares[1] = {squares_};
      LaneSum<kWarpThreads>(squares);
      totals[0] = squares[0];
    }
    squares_ = totals[0];
    sum_ = totals[1];
  }

  __device__ double Mean(double size, double inverse_size) const {
    return static_cast<double>(shift_) + MeanLeft(size, inverse_size);
  }
  /// Of a gathered row: the variance, or the mean square (kRms).
  __device__ double Variance(double size, double inverse_size) const {
    if (!kHasSum) return squares_ * inverse_size;
    // The mean in two parts, since its rounding times a large sum would be the whole variance.
    const double mean = sum_ * inverse_size;
    const double rest = fma(-mean, size, sum_) * inverse_size;
    const double variance = (fma(-sum_, mean, squares_) - sum_ * rest) * inverse_size;
    // Not max(): a NaN stays one.
    return variance < 0.0 ? 0.0 : variance;
  }

 private:
  /// Not a NaN unless two of the three are.
  static __device__ float Middle(float a, float b, float c) {
    return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c));
  }
  static __device__ uint64_t Bits(double value) {
    return static_cast<uint64_t>(__double_as_longlong(value));
  }

  __device__ double MeanLeft(double size, double inverse_size) const {
    const double mean = sum_ * inverse_size;
    return fma(fma(-mean, size, sum_), inverse_size, mean);
  }

  /// Takes up values of which `sum` and `squares` are relative to `shift`.
  __device__ void AddGroup(float shift, float count, double sum, double squares) {
    if constexpr (kShifted) {
      if (count_ == 0.0F) shift_ = shift;
      RingSums group;
      group.shift_ = shift;
      group.count_ = count;
      group.sum_ = sum;
      group.squares_ = squares;
      group.MoveTo(shift_);
      count_ += count;
      sum_ += group.sum_;
      squares_ += group.squares_;
    } else {
      if (kHasSum) sum_ += sum;
      squares_ += squares;
    }
  }

  /// Makes sum and squares relative to `shift`.
  __device__ void MoveTo(float shift) {
    const double distance = static_cast<double>(shift_) - static_cast<double>(shift);
    const double moved = fma(static_cast<double>(count_), distance, sum_);
    squares_ = fma(distance, sum_ + moved, squares_);
    sum_ = moved;
  }

  float shift_ = 0.0F;
  float count_ = 0.0F;
  double sum_ = 0.0;
  double squares_ = 0.0;
};

}  // namespace norm_device
