// What the strip kernel of row backward does with the elements of one thread. A row takes two passes,
// like those of row_norm_backward_rows.cuh.
#pragma once

#include <cstdint>

#include "row_norm/row_norm_backward_rows.cuh"
#include "row_norm/row_norm_strip.cuh"

namespace norm_device {

/// A thread's part of rows and its sums: a strip, and single elements after the strips.
template <typename X, RowKind kKind, int kRowThreads, int kWords>
class StripColumns {
 public:
  using S = Strip<X, kWords>;
  using One = PackedGranule<X, 1>;
  using Map = StripMap<X, kRowThreads, kWords>;
  static constexpr bool kLayer = kKind == RowKind::kLayer;
  static constexpr int kPerWord = S::kPerWord;
  static constexpr int kExtras = Map::kMaxExtras;
  static constexpr int kElements = S::kElements + kExtras;
  static constexpr int kGradients = kLayer ? 2 : 1;

  __device__ StripColumns(const Map& map, const RingBackwardParams& p, int thread) {
    if (p.weight == nullptr) {
#pragma unroll
      for (float& scale : scale_) scale = 1.0F;
    } else if (p.weight_is_f32) {
      LoadScales<F32>(map, p, thread);
    } else {
      LoadScales<X>(map, p, thread);
    }
  }

  S x;
  S dy;
  One extra_x[kExtras];
  One extra_dy[kExtras];

  /// `extras`: that this thread has in this row.
  __device__ void Load(const char* x_row, const char* dy_row, int strip_at, bool holds,
                       int extra_at, int extras) {
    if (holds) {
      x.Load(x_row + strip_at);
      dy.Load(dy_row + strip_at);
    }
#pragma unroll
    for (int i = 0; i < kExtras; ++i) {
      extra_x[i] = One::Zero();
      extra_dy[i] = One::Zero();
      if (i < extras) {
        extra_x[i] = LoadExtra(x_row + extra_at, i);
        extra_dy[i] = LoadExtra(dy_row + extra_at, i);
      }
    }
  }
  __device__ void Forget() {
    x.Forget();
    dy.Forget();
  }

  template <bool kCorrected>
  __device__ RowTotals<float> Sums(const GivenStats& stats, bool holds, int extras) const {
    RowTotals<float> sums[2];
    const auto add = [&](float x_value, float dy_value, float scale, RowTotals<float>& sum) {
      const float g = dy_value * scale;
      if (kLayer) x_value -= stats.mean;
      sum.gd = fmaf(g, x_value, sum.gd);
      if (kLayer) sum.g += g;
      if (kLayer && kCorrected) sum.d += x_value;
    };
    if (holds) {
#pragma unroll
      for (int e = 0; e < S::kElements; ++e) add(x.Wide(e), dy.Wide(e), scale_[e], sums[e % 2]);
    }
#pragma unroll
    for (int i = 0; i < kExtras; ++i) {
      if (i < extras)
        add(extra_x[i].Wide(0), extra_dy[i].Wide(0), scale_[S::kElements + i], sums[i % 2]);
    }
    sums[0].gd += sums[1].gd;
    sums[0].g += sums[1].g;
    sums[0].d += sums[1].d;
    return sums[0];
  }

  /// The sum of x - mean.
  __device__ double Deviation(float mean, bool holds, int extras) const {
    const auto mean64 = static_cast<double>(mean);
    double sums[2] = {};
    if (holds) {
#pragma unroll
      for (int e = 0; e < S::kElements; ++e) {
        sums[e % 2] += static_cast<double>(x.Wide(e)) - mean64;
      }
    }
#pragma unroll
    for (int i = 0; i < kExtras; ++i) {
      if (i < extras) sums[i % 2] += static_cast<double>(extra_x[i].Wide(0)) - mean64;
    }
    return sums[0] + sums[1];
  }

  /// dx in place of x in shared memory. kAdds: and dresidual.
  template <MeanCorrection kCorrection, bool kAdds>
  __device__ void Gradients(const RowCoefficients<float>& row, char* x_row,
                            const char* dresidual_row, int strip_at, bool holds, int extra_at,
                            int extras) {
    const auto gradient = [&](float x_value, float dy_value, int e) {
      if (kLayer) x_value -= row.mean;
      if (kCorrection != MeanCorrection::kNone) x_value -= row.correction;
      const float scaled = dy_value * row.rstd;
      dweight_[e] = fmaf(
          scaled, kCorrection == MeanCorrection::kOwn ? x_value - row.dweight_correction : x_value,
          dweight_[e]);
      if (kLayer) dbias_[e] += dy_value;
      return fmaf(scaled, scale_[e], fmaf(row.slope, x_value, row.shift));
    };
    if (holds) {
      S added;
      if (kAdds) added.Load(dresidual_row + strip_at);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        float values[kPerWord];
#pragma unroll
        for (int k = 0; k < kPerWord; ++k) {
          const int e = i * kPerWord + k;
          values[k] = gradient(x.Wide(e), dy.Wide(e), e);
          if (kAdds) values[k] += added.Wide(e);
        }
        uint32_t packed[1];
        WordCodec<X>::template Narrow<kPerWord>(values, packed);
        x.words[i] = packed[0];
      }
      x.Store(x_row + strip_at);
    }
#pragma unroll
    for (int i = 0; i < kExtras; ++i) {
      if (i < extras) {
        float value[1] = {gradient(extra_x[i].Wide(0), extra_dy[i].Wide(0), S::kElements + i)};
        if (kAdds) value[0] += LoadExtra(dresidual_row + extra_at, i).Wide(0);
        One::Rounded(value).Store(
            reinterpret_cast<StorageOf<X>*>(x_row + extra_at) + i * kRowThreads, true);
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
  /// Calls visit(i, sum) for the sums of dweight, then dbias, by reference.
  template <typename Visit>
  __device__ void ForEachSum(Visit&& visit) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) visit(e, dweight_[e]);
    if (kLayer) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) visit(kElements + e, dbias_[e]);
    }
  }

 private:
  __device__ static One LoadExtra(const char* from, int i) {
    return One::Load(reinterpret_cast<const StorageOf<X>*>(from) + i * kRowThreads, true);
  }
  template <typename W>
  __device__ void LoadScales(const Map& map, const RingBackwardParams& p, int thread) {
    const auto* weight = static_cast<const StorageOf<W>*>(p.weight);
    PackedGranule<W, 1> values[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int extra = e - S::kElements;
      const bool holds = extra < 0 ? map.holds : extra < map.lane_extras;
      const int column =
          extra < 0 ? thread * S::kElements + e : map.first_extra + extra * kRowThreads;
      values[e] = PackedGranule<W, 1>::LoadConstant(weight + (holds ? column : 0), true);
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e) scale_[e] = p.weight_offset + values[e].Wide(0);
  }

  float scale_[kElements];
  float dweight_[kElements] = {};
  float dbias_[kLayer ? kElements : 1] = {};
};

/// Where the elements of a thread lie in a row, for rows in f64; `holds` and `extras` 0: nowhere.
struct StripPlace {
  int first;
  bool holds;
  int first_extra;
  int extras;
};

/// Both passes in f64, for a row whose sums or coefficients f32 does not hold; dx takes the place of
/// x. The thread's terms of dweight and dbias go to `terms`. Reached by all threads that share the
/// row.
template <typename X, RowKind kKind, int kRowThreads, int kStripElements, int kElements,
          typename Group>
__device__ __noinline__ void CarefulStrip(const RingBackwardParams& p, char* x_row,
                                          const char* dy_row, const char* dresidual_row,
                                          GivenStats stats, Group group, StripPlace place,
                                          float* terms) {
  using Storage = StorageOf<X>;
  const auto for_each_column = [&](auto&& visit) {
#pragma unroll 1
    for (int e = 0; e < kElements; ++e) {
      const int extra = e - kStripElements;
      if (extra < 0 ? place.holds : extra < place.extras) {
        visit(e, extra < 0 ? place.first + e : place.first_extra + extra * kRowThreads);
      }
    }
  };
  const auto wide = [](const char* row, int column) {
    return static_cast<double>(Element<X>::Widen(reinterpret_cast<const Storage*>(row)[column]));
  };
  const auto centred = [&](int column) {
    return wide(x_row, column) - (kKind == RowKind::kLayer ? static_cast<double>(stats.mean) : 0.0);
  };
  const auto scale = [&](int column) { return static_cast<double>(ColumnScale<X>(p, column)); };
#pragma unroll 1
  for (int e = 0; e < 2 * kElements; ++e) terms[e] = 0.0F;
  double sums[3] = {};
  for_each_column([&](int, int column) {
    const double g = wide(dy_row, column) * scale(column);
    sums[0] = fma(g, centred(column), sums[0]);
    sums[1] += g;
    sums[2] += centred(column);
  });
  group.Sum(sums);
  const RowTotals<double> totals = {sums[0], sums[1], sums[2]};
  const RowCoefficients<double> row =
      Coefficients<kKind>(totals, stats, 1.0 / static_cast<double>(p.hidden_size));
  for_each_column([&](int e, int column) {
    const double d = centred(column) - row.correction;
    const double dy = wide(dy_row, column);
    const double scaled = dy * row.rstd;
    double gradient = fma(scaled, scale(column), fma(row.slope, d, row.shift));
    if (dresidual_row != nullptr) gradient += wide(dresidual_row, column);
    reinterpret_cast<Storage*>(x_row)[column] = Element<X>::Narrow(static_cast<float>(gradient));
    terms[e] = static_cast<float>(scaled * d);
    terms[kElements + e] = static_cast<float>(dy);
  });
}

}  // namespace norm_device
