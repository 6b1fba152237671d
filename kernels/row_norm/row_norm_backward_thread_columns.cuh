// A thread's part of the rows that the block and tile kernels of row backward take.
#pragma once

#include <cstdint>

#include "primitives/element_access.cuh"
#include "row_norm/row_norm_backward_rows.cuh"

namespace norm_device {

/// Weights of a thread's aligned granules on their way: their loads begin before copies that would
/// keep them waiting.
template <typename X, int V, int kGranules>
class WeightLoads {
 public:
  /// column_of(i): where granule i begins, or any column.
  template <typename ColumnOf>
  __device__ void Begin(const RingBackwardParams& p, ColumnOf&& column_of) {
    if (p.weight == nullptr) return;
    const int element_bytes =
        p.weight_is_f32 ? sizeof(float) : static_cast<int>(sizeof(StorageOf<X>));
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      const auto* from = reinterpret_cast<const uint4*>(static_cast<const char*>(p.weight) +
                                                        column_of(i) * element_bytes);
      pieces_[i][0] = from[0];
      if (kF32Pieces > 1 && p.weight_is_f32) pieces_[i][kF32Pieces - 1] = from[1];
    }
  }
  __device__ void Finish(const RingBackwardParams& p, float (&scale)[V * kGranules]) const {
    if (p.weight == nullptr) {
#pragma unroll
      for (int e = 0; e < V * kGranules; ++e) scale[e] = 1.0F;
    } else if (p.weight_is_f32) {
      Widen<F32>(p, scale);
    } else {
      Widen<X>(p, scale);
    }
  }

 private:
  static constexpr int kF32Pieces = V * static_cast<int>(sizeof(float)) / 16;

  template <typename W>
  __device__ void Widen(const RingBackwardParams& p, float (&scale)[V * kGranules]) const {
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      const auto granule = StagedGranule<W, V>::Of(pieces_[i]);
#pragma unroll
      for (int v = 0; v < V; ++v) scale[i * V + v] = p.weight_offset + granule.Wide(v);
    }
  }

  uint4 pieces_[kGranules][kF32Pieces];
};

/// A thread's part of the rows it shares. kAligned: rows begin at multiples of a granule in memory
/// and in the ring.
template <typename X, RowKind kKind, int V, int kGranules, bool kAligned>
class ThreadColumns {
 public:
  static constexpr int kElements = V * kGranules;
  using Storage = StorageOf<X>;
  using Staged = StagedGranule<X, V>;

  __device__ explicit ThreadColumns(const ColumnMap& map) : map_(map) {}

  __device__ int Column(int element) const {
    return map_.first + element / V * map_.step + element % V;
  }
  __device__ bool Holds(int column) const { return column < map_.end; }

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

  /// LoadWeight in two parts.
  static constexpr bool kLoadsEarly = kAligned && V > 1;
  using Loads = WeightLoads<X, kLoadsEarly ? V : 4, kGranules>;
  __device__ void BeginWeight(const RingBackwardParams& p, Loads& loads) const {
    if constexpr (kLoadsEarly) {
      loads.Begin(p, [&](int i) { return Holds(Column(i * V)) ? Column(i * V) : 0; });
    }
  }
  __device__ void FinishWeight(const RingBackwardParams& p, const Loads& loads) {
    if constexpr (kLoadsEarly) {
      loads.Finish(p, scale_);
    } else {
      LoadWeight(p);
    }
  }

  /// A row's elements between its passes.
  struct Held {
    Staged x[kGranules];
    Staged dy[kGranules];
  };

  /// First pass. kExact: also adds x - shift to `exact`.
  template <bool kCorrected, bool kExact = false>
  __device__ RowTotals<float> Sums(const char* x, const char* dy, const GivenStats& stats,
                                   Held& held, float shift = 0.0F,
                                   SplitSum* exact = nullptr) const {
    RowTotals<float> sums;
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      const int column = Column(i * V);
      if (Holds(column)) {
        held.x[i] = Staged::template Load<kAligned>(x, column);
        held.dy[i] = Staged::template Load<kAligned>(dy, column);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const float g = held.dy[i].Wide(v) * scale_[i * V + v];
          float d = held.x[i].Wide(v);
          if constexpr (kExact) exact->Add(d - shift);
          if (kKind == RowKind::kLayer) d -= stats.mean;
          sums.gd = fmaf(g, d, sums.gd);
          if (kKind == RowKind::kLayer) {
            sums.g += g;
            if (kCorrected) sums.d += d;
          }
        }
      }
    }
    return sums;
  }

  /// Second pass: dx of the row and the parameters' terms. kHeld: from what the first pass held,
  /// else from shared memory again.
  template <MeanCorrection kCorrection, bool kHeld>
  __device__ void Gradients(const RowPlace& place, const RowCoefficients<float>& row,
                            const Held& held) {
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      const int column = Column(i * V);
      if (Holds(column)) {
        const Staged x_values =
            kHeld ? held.x[i] : Staged::template Load<kAligned>(place.x, column);
        const Staged dy_values =
            kHeld ? held.dy[i] : Staged::template Load<kAligned>(place.dy, column);
        float gradient[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const int e = i * V + v;
          float d = x_values.Wide(v);
          if (kKind == RowKind::kLayer) d -= row.mean;
          if (kCorrection != MeanCorrection::kNone) d -= row.correction;
          const float scaled = dy_values.Wide(v) * row.rstd;
          gradient[v] = fmaf(scaled, scale_[e], fmaf(row.slope, d, row.shift));
          if (kCorrection == MeanCorrection::kOwn) d -= row.dweight_correction;
          dweight_[e] = fmaf(scaled, d, dweight_[e]);
          if (kKind == RowKind::kLayer) dbias_[e] += dy_values.Wide(v);
        }
        if (place.dresidual != nullptr) {
          const auto added = Staged::template Load<kAligned>(place.dresidual, column);
#pragma unroll
          for (int v = 0; v < V; ++v) gradient[v] += added.Wide(v);
        }
        Granule<X, V> rounded;
#pragma unroll
        for (int v = 0; v < V; ++v) rounded.values[v] = Element<X>::Narrow(gradient[v]);
        StoreGranule<X, V>(reinterpret_cast<Storage*>(place.dx) + column, rounded, kAligned);
      }
    }
  }

  /// Adds terms[element] to dweight and terms[kElements + element] to dbias.
  __device__ void AddTerms(const float* terms) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      dweight_[e] += terms[e];
      if (kHasBias) dbias_[e] += terms[kElements + e];
    }
  }
  __device__ const ColumnMap& map() const { return map_; }

  /// Calls visit(element, dweight, dbias) with the sums by reference.
  template <typename Visit>
  __device__ void ForEachSum(Visit&& visit) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) visit(e, dweight_[e], dbias_[kHasBias ? e : 0]);
  }

 private:
  static constexpr bool kHasBias = kKind == RowKind::kLayer;

  template <typename W>
  __device__ void LoadScales(const RingBackwardParams& p) {
    const auto* weight = static_cast<const StorageOf<W>*>(p.weight) + map_.before;
    Granule<W, V> values[kGranules];
#pragma unroll
    for (int i = 0; i < kGranules; ++i) {
      const int column = Column(i * V);
      values[i] = LoadGranule<W, V>(weight + (Holds(column) ? column : 0), kAligned);
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e) scale_[e] = p.weight_offset + values[e / V].Wide(e % V);
  }

  ColumnMap map_;
  float scale_[kElements];
  float dweight_[kElements] = {};
  float dbias_[kHasBias ? kElements : 1] = {};
};

}  // namespace norm_device
