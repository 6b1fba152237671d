// What the threads of a group of warps do with the elements of their rows.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_backward_group_exchange.cuh"
#include "row_norm/row_norm_backward_rows.cuh"

namespace norm_device {

/// A thread's part of the rows that its group shares. kAligned: rows begin at multiples of a granule
/// in memory and in the ring, whose places past a row's end read as zeros.
template <typename X, RowKind kKind, int V, int kGranules, bool kAligned>
class GroupColumns {
 public:
  static constexpr int kElements = V * kGranules;
  using Storage = StorageOf<X>;
  using Staged = StagedGranule<X, V>;

  __device__ explicit GroupColumns(const ColumnMap& map) : map_(map) {}

  __device__ int Column(int granule) const { return map_.first + granule * kWarpThreads * V; }
  __device__ bool Holds(int granule) const { return Column(granule) < map_.end; }

  /// All loads at once: a block waits for them before its first row. kAligned: the weight, too,
  /// begins at a multiple of 16 bytes.
  __device__ void LoadWeight(const RingBackwardParams& p) {
    if (p.weight == nullptr) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) scale_[e] = 1.0F;
    } else if (p.weight_is_f32) {
      LoadScales<F32>(p);
    } else {
      LoadScales<X>(p);
    }
  }

  /// First pass over a row. kDeviation: and the sum of x - mean in f64.
  template <bool kDeviation>
  __device__ GroupSums Sums(const RowPlace& place, const GivenStats& stats,
                            double* deviation = nullptr) const {
    GroupSums sums;
    float gd[2] = {};
    float g_sum[2] = {};
    float x_sum[2] = {};
    float x_lost[2] = {};
    double d_sum[2] = {};
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      if (!(kAligned && !kDeviation) && !Holds(i)) continue;
      const Staged x = Staged::template Load<kAligned>(place.x, Column(i));
      const Staged dy = Staged::template Load<kAligned>(place.dy, Column(i));
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float g = dy.Wide(v) * scale_[i * V + v];
        float d = x.Wide(v);
        if constexpr (kExactMean) AddExactly(d, x_sum[v % 2], x_lost[v % 2]);
        if constexpr (kDeviation) {
          d_sum[v % 2] += static_cast<double>(d) - static_cast<double>(stats.mean);
        }
        if (kLayer) d -= stats.mean;
        gd[v % 2] = fmaf(g, d, gd[v % 2]);
        if (kLayer) g_sum[v % 2] += g;
      }
    }
    sums.gd = gd[0] + gd[1];
    if (kLayer) sums.g = g_sum[0] + g_sum[1];
    if constexpr (kExactMean) {
      AddExactly(x_sum[1], x_sum[0], x_lost[0]);
      sums.x = x_sum[0];
      sums.x_lost = x_lost[0] + x_lost[1];
    }
    if constexpr (kDeviation) *deviation = d_sum[0] + d_sum[1];
    return sums;
  }

  /// Sum of d.
  __device__ float Deviation(const RowPlace& place, const GivenStats& stats) const {
    float sum = 0.0F;
#pragma unroll 1
    for (int i = 0; i < kGranules; ++i) {
      if (!Holds(i)) continue;
      const Staged x = Staged::template Load<kAligned>(place.x, Column(i));
#pragma unroll
      for (int v = 0; v < V; ++v) sum += x.Wide(v) - stats.mean;
    }
    return sum;
  }

  template <MeanCorrection kCorrection>
  __device__ void Gradients(const RowPlace& place, const RowCoefficients<float>& row) {
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      if (!kAligned && !Holds(i)) continue;
      const Staged x = Staged::template Load<kAligned>(place.x, Column(i));
      const Staged dy = Staged::template Load<kAligned>(place.dy, Column(i));
      float gradient[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int e = i * V + v;
        float d = x.Wide(v);
        if (kLayer) d -= row.mean;
        if (kCorrection != MeanCorrection::kNone) d -= row.correction;
        const float scaled = dy.Wide(v) * row.rstd;
        gradient[v] =
            fmaf(scaled, scale_[e], kLayer ? fmaf(row.slope, d, row.shift) : row.slope * d);
        if (kCorrection == MeanCorrection::kOwn) d -= row.dweight_correction;
        dweight_[e] = fmaf(scaled, d, dweight_[e]);
        if (kLayer) dbias_[e] += dy.Wide(v);
      }
      if (place.dresidual != nullptr) {
        const auto added = Staged::template Load<kAligned>(place.dresidual, Column(i));
#pragma unroll
        for (int v = 0; v < V; ++v) gradient[v] += added.Wide(v);
      }
      if (Holds(i)) {
        auto* out = reinterpret_cast<Storage*>(place.dx) + Column(i);
        Granule<X, V> rounded;
#pragma unroll
        for (int v = 0; v < V; ++v) rounded.values[v] = Element<X>::Narrow(gradient[v]);
        StoreGranule<X, V>(out, rounded, kAligned);
      }
    }
  }

  __device__ void AddTerms(const float* terms) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      dweight_[e] += terms[e];
      if (kLayer) dbias_[e] += terms[kElements + e];
    }
  }
  __device__ void Clear() {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      dweight_[e] = 0.0F;
      if (kLayer) dbias_[e] = 0.0F;
    }
  }
  __device__ void AddTotals(const float* totals, int warp) {
    ForEachTotal(totals, warp, [&](const float4* total, float* sums) {
      sums[0] += total->x;
      sums[1] += total->y;
      sums[2] += total->z;
      sums[3] += total->w;
    });
  }
  __device__ void StoreTotals(float* totals, int warp) {
    ForEachTotal(totals, warp, [&](const float4* total, float* sums) {
      *const_cast<float4*>(total) = make_float4(sums[0], sums[1], sums[2], sums[3]);
    });
  }
  __device__ void StorePartials(const RingBackwardParams& p, int64_t at) {
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      if (!Holds(i)) continue;
#pragma unroll
      for (int v = 0; v < V; v += 4) {
        const float* w = dweight_ + i * V + v;
        if (p.dweight_partials != nullptr) {
          *reinterpret_cast<float4*>(p.dweight_partials + at + Column(i) + v) =
              make_float4(w[0], w[1], w[2], w[3]);
        }
        if constexpr (kLayer) {
          const float* b = dbias_ + i * V + v;
          if (p.dbias_partials != nullptr) {
            *reinterpret_cast<float4*>(p.dbias_partials + at + Column(i) + v) =
                make_float4(b[0], b[1], b[2], b[3]);
          }
        }
      }
    }
  }
  /// The same from the totals in shared memory, consecutive columns by consecutive lanes.
  __device__ void StorePartials(const RingBackwardParams& p, const float* totals, int warp,
                                int64_t at) {
    if constexpr (V == 4) {
      StorePartials(p, at);
    } else {
      static_assert(V == 8);
      __syncwarp();
      const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
      const int first = map_.first - lane * V;
#pragma unroll
      for (int k = 0; k < kGradients; ++k) {
        float* partials = k == 0 ? p.dweight_partials : p.dbias_partials;
        const auto* own = reinterpret_cast<const float4*>(totals) +
                          ((warp * kGradients + k) * kQuads + lane % 2) * kWarpThreads + lane / 2;
        if (partials == nullptr) continue;
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          const int column = first + (q * kWarpThreads + lane) * 4;
          const float4 four = own[q / 2 * 2 * kWarpThreads + q % 2 * (kWarpThreads / 2)];
          if (column < map_.end) *reinterpret_cast<float4*>(partials + at + column) = four;
        }
      }
    }
  }
  /// The gradients themselves, of a request that one block has alone.
  __device__ void StoreGradients(const RingBackwardParams& p) const {
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      if (!Holds(i)) continue;
      if (p.dweight != nullptr) StoreGradient(p, p.dweight, Column(i), dweight_ + i * V);
      if constexpr (kLayer) {
        if (p.dbias != nullptr) StoreGradient(p, p.dbias, Column(i), dbias_ + i * V);
      }
    }
  }
  __device__ const ColumnMap& map() const { return map_; }

 private:
  static constexpr bool kLayer = kKind == RowKind::kLayer;
  static constexpr bool kExactMean = GroupExchange<X, kKind>::kExactMean;
  static constexpr int kGradients = kLayer ? 2 : 1;
  static constexpr int kQuads = kElements / 4;

  /// A granule of a gradient, of the weight's type.
  __device__ static void StoreGradient(const RingBackwardParams& p, void* gradient, int column,
                                       const float* sums) {
    if (p.weight_is_f32) {
      StoreRounded<F32>(static_cast<float*>(gradient) + column, sums);
    } else {
      StoreRounded<X>(static_cast<Storage*>(gradient) + column, sums);
    }
  }

  template <typename Visit>
  __device__ void ForEachTotal(const float* totals, int warp, Visit&& visit) {
    const auto* own = reinterpret_cast<const float4*>(totals) +
                      warp * kGradients * kQuads * kWarpThreads + threadIdx.x % kWarpThreads;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      visit(own + q * kWarpThreads, dweight_ + q * 4);
      if constexpr (kLayer) visit(own + (kQuads + q) * kWarpThreads, dbias_ + q * 4);
    }
  }
  template <typename W>
  __device__ void LoadScales(const RingBackwardParams& p) {
    const auto* weight = static_cast<const StorageOf<W>*>(p.weight);
    Granule<W, V> values[kGranules];
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      values[i] = LoadGranule<W, V>(weight + (Holds(i) ? Column(i) : 0), kAligned);
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e) scale_[e] = p.weight_offset + values[e / V].Wide(e % V);
  }
  template <typename Y>
  __device__ static void StoreRounded(StorageOf<Y>* out, const float* values) {
    Granule<Y, V> rounded;
#pragma unroll
    for (int v = 0; v < V; ++v) rounded.values[v] = Element<Y>::Narrow(values[v]);
    StoreGranule<Y, V>(out, rounded, reinterpret_cast<uintptr_t>(out) % kPieceBytes == 0);
  }

  ColumnMap map_;
  float scale_[kElements];
  float dweight_[kElements] = {};
  float dbias_[kLayer ? kElements : 1] = {};
};

}  // namespace norm_device
