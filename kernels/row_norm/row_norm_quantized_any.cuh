// The long way of rows whose y is quantized: x is read again in every pass, sums are in f64.
#pragma once

#include <cstdint>

#include "primitives/byte_formats.cuh"
#include "primitives/moments.cuh"
#include "row_norm/row_norm_quantized_device.h"
#include "row_norm/row_norm_quantized_request.cuh"
#include "row_norm/row_norm_quantized_row.cuh"

namespace norm_device {

/// Any row, a granule at a time: x is read again in every pass. All threads take part in the
/// exchanges; those without `writes` write nothing.
template <typename Pair, RowKind kKind, typename Owner, int kElements>
class AnyRow {
 public:
  using Columns = QuantizedColumns<Pair, kKind, Owner, kElements>;
  using X = typename Columns::X;
  using Granule = typename Columns::Granule;
  using Weights = typename Columns::Weights;
  static constexpr int V = Columns::V;

  __device__ AnyRow(const RowForwardParams& p, const QuantizedRequest& request,
                    const Columns& columns, Owner& owner, int64_t index, bool writes)
      : p_(p),
        request_(request),
        columns_(columns),
        owner_(owner),
        index_(index),
        writes_(writes),
        offset_(index * p.hidden_size + columns.first()) {}

  __device__ void Write() {
    if constexpr (kKind == RowKind::kLayer) {
      double sum[1] = {0.0};
      ForEach([&](int, const Granule& x) {
#pragma unroll
        for (int i = 0; i < V; ++i) sum[0] += static_cast<double>(x.Wide(i));
      });
      owner_.Sum(sum);
      mean_ = sum[0] * p_.inverse_size;
    }
    double squares[2] = {0.0, 0.0};
    ForEach([&](int, const Granule& x) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const double deviation = static_cast<double>(x.Wide(i)) - mean_;
        squares[0] += deviation;
        squares[1] = fma(deviation, deviation, squares[1]);
      }
    });
    owner_.Sum(squares);
    if constexpr (kKind == RowKind::kLayer) mean_ += squares[0] * p_.inverse_size;
    rstd_ = ReciprocalDeviation(squares[1] * p_.inverse_size, p_.eps);

    float factor = p_.inverse_y_scale;
    if (request_.scales_rows) {
      float largest = 0.0F;
      ForEach([&](int g, const Granule& x) {
        float y[V];
        Normalize(g, x, y);
#pragma unroll
        for (int i = 0; i < V; ++i) largest = MaxMagnitude(largest, y[i]);
      });
      factor = FactorOfRow(__uint_as_float(owner_.Max(__float_as_uint(largest))));
    }
    if (IsFirst()) {
      if (kKind == RowKind::kLayer && p_.mean != nullptr) {
        static_cast<float*>(p_.mean)[index_] = static_cast<float>(mean_);
      }
      if (p_.rstd != nullptr) static_cast<float*>(p_.rstd)[index_] = static_cast<float>(rstd_);
    }
    ForEach([&](int g, const Granule& x) {
      float y[V];
      Normalize(g, x, y);
      uint8_t* codes = static_cast<uint8_t*>(p_.y) + offset_ + g * Columns::kStep;
      if (request_.is_int8) {
        // Zeros for a row whose largest |y| is not finite.
#pragma unroll
        for (int i = 0; i < V; ++i) y[i] = isnan(factor) ? 0.0F : y[i] * factor;
        Int8::Quantize(y, 1.0F).Store(codes, p_.aligned);
      } else {
        F8E4M3::Quantize(y, factor).Store(codes, p_.aligned);
      }
    });
  }

 private:
  __device__ bool IsFirst() const { return writes_ && owner_.IsFirstThread(); }

  template <typename Visit>
  __device__ void ForEach(Visit&& visit) const {
    const void* source = p_.residual != nullptr ? p_.residual_sum : p_.x;
    const auto* x = static_cast<const StorageOf<X>*>(source) + offset_;
#pragma unroll 1
    for (int g = 0; writes_ && g < Columns::kGranules && columns_.Holds(g); ++g) {
      visit(g, Granule::Load(x + g * Columns::kStep, p_.aligned));
    }
  }

  __device__ void Normalize(int g, const Granule& x, float (&y)[V]) const {
    Weights weight;
    Weights bias;
    columns_.FetchAny(p_, g, weight, bias);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      y[i] = static_cast<float>((static_cast<double>(x.Wide(i)) - mean_) * rstd_);
    }
    if (p_.round_normalized) {
      const Granule rounded = Granule::Rounded(y);
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] = rounded.Wide(i);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      y[i] = kKind == RowKind::kLayer
                 ? fmaf(y[i], weight.Wide(i), bias.Wide(i))
                 : y[i] * (weight.Wide(i) + static_cast<float>(p_.weight_offset));
    }
  }

  /// What y of a row with this largest |y| is multiplied by: 0 for zeros, NaN where it is not finite.
  __device__ float FactorOfRow(float largest) const {
    float scale = largest / request_.largest_code;
    float factor = 1.0F / scale;
    if (scale < kSmallestRowScale) {
      scale = 0.0F;
      factor = 0.0F;
    }
    if (!isfinite(scale)) factor = __uint_as_float(0x7FFFFFFFU);
    if (IsFirst()) p_.row_scale[index_] = scale;
    return factor;
  }

  const RowForwardParams& p_;
  const QuantizedRequest& request_;
  const Columns& columns_;
  Owner& owner_;
  int64_t index_;
  bool writes_;
  int64_t offset_;
  double mean_ = 0.0;
  double rstd_ = 0.0;
};

}  // namespace norm_device
