// What the ring kernels of row backward do with the elements of one thread. A row takes two passes
// over shared memory. First: sums of g * d and g, where g = dy * weight and d is x less the given
// mean; where the mean is large against the spread also the sum of d, which tells what rounding
// left of the mean. Second, from the totals: dx, and the terms of dweight and dbias into plain f32
// registers, which the kernels empty every few rows.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/element_access.cuh"
#include "row_norm/row_norm_backward_device.h"
#include "row_norm/row_norm_backward_mean.cuh"

namespace norm_device {

/// Sums over a row.
template <typename A>
struct RowTotals {
  A gd = 0;  // of g * d
  A g = 0;   // kLayer
  A d = 0;   // kLayer, where MeanNeedsCorrection
};

/// dx = rstd * dy * weight + slope * d + shift; d = (x - mean) - correction. The term of dweight is
/// rstd * dy * d, of kExactMeanRows rows and fewer rstd * dy * (d - dweight_correction).
template <typename A>
struct RowCoefficients {
  A mean = 0;
  A correction = 0;
  A dweight_correction = 0;
  A rstd = 0;
  A slope = 0;
  A shift = 0;
};

/// Of a row of one element, whose mean takes everything, LayerNorm's are zero.
template <RowKind kKind, typename A>
__device__ RowCoefficients<A> Coefficients(const RowTotals<A>& totals, const GivenStats& stats,
                                           A share) {
  RowCoefficients<A> row;
  row.rstd = kKind == RowKind::kLayer && share == A(1) ? A(0) : static_cast<A>(stats.rstd);
  A mean_gd = totals.gd * share;
  if (kKind == RowKind::kLayer) {
    const A mean_g = totals.g * share;
    row.mean = static_cast<A>(stats.mean);
    row.correction = totals.d * share;
    mean_gd = fma(-row.correction, mean_g, mean_gd);
    row.shift = -(row.rstd * mean_g);
  }
  row.slope = -(mean_gd * row.rstd) * (row.rstd * row.rstd);
  return row;
}

/// Whether f32 held the sums and holds the cube of rstd: the row is taken in f64 otherwise.
template <RowKind kKind>
__device__ bool FitsF32(const RowTotals<float>& totals, const GivenStats& stats, float slope) {
  constexpr float kSmallest = 0x1p-20F;
  constexpr float kLargest = 0x1p20F;
  bool fits = stats.rstd > kSmallest && stats.rstd < kLargest && isfinite(totals.gd);
  if (kKind == RowKind::kLayer) fits = fits && isfinite(totals.g) && isfinite(totals.d);
  return fits && isfinite(slope);
}

/// The same from the coefficients: sums that are not finite leave none that is.
__device__ inline bool FitsF32(const GivenStats& stats, const RowCoefficients<float>& row) {
  constexpr float kSmallest = 0x1p-20F;
  constexpr float kLargest = 0x1p20F;
  return stats.rstd > kSmallest && stats.rstd < kLargest &&
         fabsf(row.slope) + fabsf(row.shift) < INFINITY;
}

/// Whether dweight of a request is from means without rounding; told at compile time but for segments.
template <typename Launch>
__device__ bool HasExactMean(const RingBackwardParams& p) {
  if constexpr (std::is_same_v<Launch, RingBackwardParams>) {
    return false;
  } else if constexpr (std::is_same_v<Launch, RingBackwardFewRows>) {
    return true;
  } else {
    return p.rows <= kExactMeanRows;
  }
}

/// What a row is centred by besides the mean.
enum class MeanCorrection : uint8_t {
  kNone,
  kShared,  // the correction, in dx and dweight
  kOwn,     // and what dweight has of its own
};

/// V consecutive elements that wait in shared memory, two 16-bit ones to a register.
template <typename X, int V>
class StagedGranule {
 public:
  using Storage = StorageOf<X>;

  template <bool kAligned>
  __device__ static StagedGranule Load(const char* chunk, int column) {
    StagedGranule granule;
    const auto* from = reinterpret_cast<const Storage*>(chunk) + column;
    if constexpr (V == 1) {
      granule.single_ = *from;
    } else if constexpr (kAligned) {
#pragma unroll
      for (int i = 0; i < kWords; i += kWordsOfAccess) {
        const auto access = *reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(from) +
                                                            i * sizeof(uint32_t));
        granule.words_[i] = access.x;
        granule.words_[i + 1] = access.y;
        granule.words_[i + 2] = access.z;
        granule.words_[i + 3] = access.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) granule.words_[i] = Gather(from + i * kPerWord);
    }
    return granule;
  }
  /// Of its 16-byte pieces.
  __device__ static StagedGranule Of(const uint4* pieces) {
    StagedGranule granule;
#pragma unroll
    for (int i = 0; i < kWords; i += kWordsOfAccess) {
      const uint4 access = pieces[i / kWordsOfAccess];
      granule.words_[i] = access.x;
      granule.words_[i + 1] = access.y;
      granule.words_[i + 2] = access.z;
      granule.words_[i + 3] = access.w;
    }
    return granule;
  }
  __device__ float Wide(int i) const {
    if constexpr (V == 1) {
      return Element<X>::Widen(single_);
    } else if constexpr (sizeof(Storage) == 4) {
      return __uint_as_float(words_[i]);
    } else if constexpr (std::is_same_v<X, BF16>) {
      const uint32_t word = words_[i / 2];
      return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000U);
    } else {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words_[i / 2]));
      return i % 2 == 0 ? pair.x : pair.y;
    }
  }

 private:
  static constexpr int kPerWord = 4 / static_cast<int>(sizeof(Storage));
  static constexpr int kWords = V == 1 ? 1 : V / kPerWord;
  static constexpr int kWordsOfAccess = 4;

  __device__ static uint32_t Gather(const Storage* from) {
    if constexpr (kPerWord == 1) {
      return __float_as_uint(*from);
    } else {
      const auto* halves = reinterpret_cast<const uint16_t*>(from);
      return static_cast<uint32_t>(halves[0]) | static_cast<uint32_t>(halves[1]) << 16;
    }
  }

  uint32_t words_[kWords];
  Storage single_;
};

/// weight + offset of one column, 1 where there is no weight.
template <typename X>
__device__ float ColumnScale(const RingBackwardParams& p, int64_t column) {
  if (p.weight == nullptr) return 1.0F;
  return p.weight_offset +
         (p.weight_is_f32 ? static_cast<const float*>(p.weight)[column]
                          : Element<X>::Widen(static_cast<const StorageOf<X>*>(p.weight)[column]));
}

/// Where a row lies.
struct RowPlace {
  const char* x;  // in shared memory
  const char* dy;
  const char* dresidual;  // or null
  char* dx;
};

/// A thread's columns: granule i begins at column first + i * step; those at `end` and after do not
/// exist. `before` columns of the row belong to other blocks.
struct ColumnMap {
  int first;
  int step;
  int end;
  int before;
};

/// dweight_correction of a row, from the sum of x - mean in f64. dx goes without: its bits do not
/// depend on the number of rows. Out of line, and reached, as CarefulRow.
template <typename X, int V, int kElements, bool kAligned, typename Group>
__device__ __noinline__ float DweightCorrection(const char* x, float mean, float correction,
                                                float share, Group group, ColumnMap map) {
  double parts[2] = {};
#pragma unroll 4
  for (int i = 0; i < kElements / V; ++i) {
    const int column = map.first + i * map.step;
    if (column < map.end) {
      const auto granule = StagedGranule<X, V>::template Load<kAligned>(x, column);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        parts[v % 2] += static_cast<double>(granule.Wide(v)) - static_cast<double>(mean);
      }
    }
  }
  double sum[1] = {parts[0] + parts[1]};
  group.Sum(sum);
  return static_cast<float>(
      fma(sum[0], static_cast<double>(share), -static_cast<double>(correction)));
}

/// Both passes in f64, for a row whose sums or coefficients f32 does not hold. Rare, so it goes
/// element by element. Calls add_terms(element, dweight, dbias) with this thread's terms. Reached
/// by all threads that share the row; `group` adds their values up.
template <typename X, RowKind kKind, int V, int kElements, typename Group, typename AddTerms>
__device__ void CarefulRow(const RingBackwardParams& p, const RowPlace& place,
                           const GivenStats& stats, const Group& group, const ColumnMap& map,
                           AddTerms&& add_terms) {
  using Storage = StorageOf<X>;
  const auto wide = [](const char* chunk, int column) {
    return static_cast<double>(Element<X>::Widen(reinterpret_cast<const Storage*>(chunk)[column]));
  };
  const auto centred = [&](int column) {
    return wide(place.x, column) -
           (kKind == RowKind::kLayer ? static_cast<double>(stats.mean) : 0.0);
  };
  const auto scale = [&](int column) {
    return static_cast<double>(ColumnScale<X>(p, map.before + column));
  };
  double sums[3] = {};
#pragma unroll 1
  for (int e = 0; e < kElements; ++e) {
    const int column = map.first + e / V * map.step + e % V;
    if (column >= map.end) continue;
    const double g = wide(place.dy, column) * scale(column);
    sums[0] = fma(g, centred(column), sums[0]);
    sums[1] += g;
    sums[2] += centred(column);
  }
  group.Sum(sums);
  const RowTotals<double> totals = {sums[0], sums[1], sums[2]};
  const RowCoefficients<double> row =
      Coefficients<kKind>(totals, stats, 1.0 / static_cast<double>(p.hidden_size));
#pragma unroll 1
  for (int e = 0; e < kElements; ++e) {
    const int column = map.first + e / V * map.step + e % V;
    if (column >= map.end) continue;
    const double d = centred(column) - row.correction;
    const double scaled = wide(place.dy, column) * row.rstd;
    double gradient = fma(scaled, scale(column), fma(row.slope, d, row.shift));
    if (place.dresidual != nullptr) gradient += wide(place.dresidual, column);
    reinterpret_cast<Storage*>(place.dx)[column] = Element<X>::Narrow(static_cast<float>(gradient));
    add_terms(e, static_cast<float>(scaled * d), static_cast<float>(wide(place.dy, column)));
  }
}

}  // namespace norm_device
