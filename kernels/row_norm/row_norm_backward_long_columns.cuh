// One thread's columns of long rows, of which it takes every row: the sums of a row, then its dx
// and the terms of dweight and dbias, which stay in registers over rows.
#pragma once

#include <cstdint>

#include "primitives/packed_granule.cuh"
#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_backward_device.h"
#include "row_norm/row_norm_backward_rows.cuh"

namespace norm_device {

/// RMSNorm: dx = rstd * g + slope * x. LayerNorm: h = (x - mean) * rstd + h_shift,
/// dx = rstd * g + slope * h + shift. g = dy * weight. Rows that are not centred have `mean` in
/// h_shift. In kExactMeanRows rows and fewer dweight has an h of its own, from the same x - mean of
/// centred rows and others: (x - dweight_mean) * rstd + dweight_shift.
struct LongCoefficients {
  float mean = 0.0F;
  float rstd = 0.0F;
  float h_shift = 0.0F;
  float dweight_mean = 0.0F;
  float dweight_shift = 0.0F;
  float slope = 0.0F;
  float shift = 0.0F;
};

/// A thread's sums of a row: of g * d, where d is x less the mean if the row is centred, and else x;
/// of g; of x, if the row is centred: it tells what rounding took from the given mean.
struct LongSums {
  float gd = 0.0F;
  float g = 0.0F;
  SplitSum x;
};

/// Of a row that arrives. `mean`: 0 if it is not centred.
struct LongCentre {
  float mean = 0.0F;
  float shift = 0.0F;  // see SplitSum
  float begin = 0.0F;
};

/// From the sums of g * d and g, where d is x less the mean if the row is centred, and else x.
template <RowKind kKind>
__device__ LongCoefficients LongRowCoefficients(const RowTotals<float>& totals,
                                                const GivenStats& stats, bool centred,
                                                float share) {
  LongCoefficients row;
  row.rstd = stats.rstd;
  if constexpr (kKind == RowKind::kRms) {
    row.slope = -(totals.gd * share * row.rstd) * (row.rstd * row.rstd);
  } else {
    const float mean_g = totals.g * share;
    const float mean_gd = totals.gd * share;
    row.mean = centred ? stats.mean : 0.0F;
    const float left = centred ? totals.d * share : stats.mean;  // of the mean, in d
    row.h_shift = -left * row.rstd;
    row.slope = -(fmaf(-left, mean_g, mean_gd) * row.rstd) * row.rstd;
    row.shift = -(row.rstd * mean_g);
  }
  return row;
}

/// Where a thread's weights wait, as f32: in registers, or in its places in shared memory.
enum class LongScale : uint8_t { kRegisters, kShared };

/// kGranules: of a thread, `threads` granules apart.
template <typename X, RowKind kKind, int kGranules, LongScale kScale>
class LongColumns {
 public:
  static constexpr int V = kWideElements<X>;
  static constexpr int kElements = kGranules * V;
  static constexpr bool kHasBias = kKind == RowKind::kLayer;
  using Four = PackedGranule<F32, 4>;
  static constexpr int kPlaces = V / 4;  // of a granule
  using Packed = PackedGranule<X, V>;

  /// Of granules at columns column + g * step; those that are not there, the last one without
  /// has_last, weigh 0. `place`: kShared, of the first granule, place_step bytes from the next.
  __device__ void LoadWeight(const RingBackwardParams& p, int64_t column, int step, bool active,
                             bool has_last, uint32_t place, int place_step) {
    place_ = place;
    place_step_ = place_step;
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      const bool has = g < kGranules - 1 ? active : has_last;
      float scale[V];
#pragma unroll
      for (int v = 0; v < V; ++v) scale[v] = has ? 1.0F : 0.0F;
      if (has && p.weight != nullptr) {
        if (p.weight_is_f32) {
          Widen<F32>(p, column + g * step, scale);
        } else {
          Widen<X>(p, column + g * step, scale);
        }
      }
      if constexpr (kScale == LongScale::kRegisters) {
#pragma unroll
        for (int v = 0; v < V; ++v) scale_[g * V + v] = scale[v];
      } else if (active) {
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
          StoreShared(PlaceOf(g, i), Four::Rounded({scale[4 * i], scale[4 * i + 1],
                                                    scale[4 * i + 2], scale[4 * i + 3]}));
        }
      }
    }
  }

  /// The weights of a granule that wait in shared memory.
  struct Scales {
    Four of[kPlaces];
  };

  __device__ Scales Scale(int g) const {
    Scales scales = {};
    if constexpr (kScale == LongScale::kShared) {
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) scales.of[i] = LoadShared<F32, 4>(PlaceOf(g, i));
    }
    return scales;
  }
  /// Adds granule g of a row to its sums; one that is not there is any of the row.
  template <bool kCentred>
  __device__ void AddUp(int g, bool has, const Packed& x, const Packed& dy,
                        const LongCentre& centre, LongSums& sums) const {
    const Scales scales = Scale(g);
    // Two chains of additions.
    float gd[2] = {sums.gd, 0.0F};
    float of_g[2] = {sums.g, 0.0F};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float scaled = dy.Wide(v) * Scaled(scales, g, v);
      const float d = kCentred ? x.Wide(v) - centre.mean : x.Wide(v);
      gd[v % 2] = fmaf(scaled, d, gd[v % 2]);
      if (kHasBias) of_g[v % 2] += scaled;
    }
    sums.gd = gd[0] + gd[1];
    sums.g = of_g[0] + of_g[1];
    if constexpr (kCentred) {
      const bool counts = g < kGranules - 1 || has;
      if constexpr (V == 4) {
#pragma unroll
        for (int v = 0; v < V; ++v) sums.x.Add(counts ? x.Wide(v) - centre.shift : 0.0F);
      } else {
        // f32 holds the sum of a few 16-bit values.
        const float sum = ((x.Wide(0) + x.Wide(1)) + (x.Wide(2) + x.Wide(3))) +
                          ((x.Wide(4) + x.Wide(5)) + (x.Wide(6) + x.Wide(7)));
        sums.x.Add(counts ? sum : 0.0F);
      }
    }
  }

  /// Sums of the terms of one granule's columns over a few rows.
  struct Terms {
    float dweight[V];
    float dbias[kHasBias ? V : 1];

    __device__ void Clear() {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        dweight[v] = 0.0F;
        if (kHasBias) dbias[v] = 0.0F;
      }
    }
  };

  /// dx of granule g; its terms begin `terms`, or are added to them. kOwnTerms: dweight has an h of
  /// its own.
  template <bool kCentred, bool kOwnTerms, bool kFirst>
  __device__ void Gradients(int g, const Packed& x, const Packed& dy, const LongCoefficients& row,
                            float (&dx)[V], Terms& terms) const {
    const Scales scales = Scale(g);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float wide = dy.Wide(v);
      float& dweight = terms.dweight[v];
      if constexpr (kHasBias) {
        const float h = kCentred ? fmaf(x.Wide(v) - row.mean, row.rstd, row.h_shift)
                                 : fmaf(x.Wide(v), row.rstd, row.h_shift);
        const float of_dweight =
            kOwnTerms ? fmaf(x.Wide(v) - row.dweight_mean, row.rstd, row.dweight_shift) : h;
        dweight = kFirst ? wide * of_dweight : fmaf(wide, of_dweight, dweight);
        terms.dbias[v] = kFirst ? wide : terms.dbias[v] + wide;
        dx[v] = fmaf(wide * Scaled(scales, g, v), row.rstd, fmaf(row.slope, h, row.shift));
      } else {
        const float scaled = wide * row.rstd;
        dweight = kFirst ? scaled * x.Wide(v) : fmaf(scaled, x.Wide(v), dweight);
        dx[v] = fmaf(scaled, Scaled(scales, g, v), row.slope * x.Wide(v));
      }
    }
  }

  __device__ Terms& Sums(int g) { return sums_[g]; }
  __device__ void Add(int g, const Terms& terms) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      sums_[g].dweight[v] += terms.dweight[v];
      if (kHasBias) sums_[g].dbias[v] += terms.dbias[v];
    }
  }

  /// Adds terms[element] to dweight and terms[kElements + element] to dbias.
  __device__ void AddTerms(const float* terms) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      sums_[e / V].dweight[e % V] += terms[e];
      if (kHasBias) sums_[e / V].dbias[e % V] += terms[kElements + e];
    }
  }

  /// Writes granule g of the sums to the columns from `column` on, and begins new sums. Reached by
  /// all lanes of a warp.
  __device__ void StoreSums(int g, const RingBackwardParams& p, int64_t column, bool has) {
    StoreGranule(p.dweight_partials, column, has, sums_[g].dweight);
    if constexpr (kHasBias) StoreGranule(p.dbias_partials, column, has, sums_[g].dbias);
    sums_[g].Clear();
  }

 private:
  template <typename W>
  __device__ static void Widen(const RingBackwardParams& p, int64_t column, float* scale) {
    const auto values =
        LoadGranule<W, V>(static_cast<const StorageOf<W>*>(p.weight) + column, !p.has_edges);
#pragma unroll
    for (int v = 0; v < V; ++v) scale[v] = p.weight_offset + values.Wide(v);
  }

  __device__ uint32_t PlaceOf(int g, int i) const {
    return place_ + (g * kPlaces + i) * place_step_;
  }
  __device__ float Scaled(const Scales& scales, int g, int v) const {
    if constexpr (kScale == LongScale::kRegisters) {
      return scale_[g * V + v];
    } else {
      return scales.of[v / 4].Wide(v % 4);
    }
  }

  __device__ static void StoreFour(float* partials, float a, float b, float c, float d) {
    *reinterpret_cast<float4*>(partials) = make_float4(a, b, c, d);
  }

  /// Lanes in pairs where V is 8, so that they write the 32 bytes of a memory sector at once.
  __device__ static void StoreGranule(float* partials, int64_t column, bool has,
                                      const float* sums) {
    if (partials != nullptr) {
      partials += column;
      if constexpr (V == 4) {
        if (has) StoreFour(partials, sums[0], sums[1], sums[2], sums[3]);
      } else {
        const bool odd = threadIdx.x % 2 != 0;
        float other[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          other[v] = __shfl_xor_sync(0xffffffffU, odd ? sums[v] : sums[4 + v], 1);
        }
        const bool other_has = __shfl_xor_sync(0xffffffffU, has ? 1 : 0, 1) != 0;
        // The even lane's granule, then the odd lane's.
        if (odd) partials -= V / 2;
        if (odd ? other_has : has) {
          StoreFour(partials, odd ? other[0] : sums[0], odd ? other[1] : sums[1],
                    odd ? other[2] : sums[2], odd ? other[3] : sums[3]);
        }
        if (odd ? has : other_has) {
          StoreFour(partials + V, odd ? sums[4] : other[0], odd ? sums[5] : other[1],
                    odd ? sums[6] : other[2], odd ? sums[7] : other[3]);
        }
      }
    }
  }

  float scale_[kScale == LongScale::kRegisters ? kElements : 1];
  uint32_t place_;
  int place_step_;
  Terms sums_[kGranules] = {};
};

}  // namespace norm_device
