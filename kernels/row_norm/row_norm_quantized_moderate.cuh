// The short way of rows whose y is quantized: x in registers, statistics from one exchange, for
// RMSNorm together with the largest magnitude. Which rows may take it depends on their own data and
// the request's numbers only.
#pragma once

#include <cstdint>

#include "primitives/byte_formats.cuh"
#include "primitives/tensor_squares.cuh"
#include "row_norm/row_norm_quantized_device.h"
#include "row_norm/row_norm_quantized_request.cuh"
#include "row_norm/row_norm_quantized_row.cuh"

namespace norm_device {

/// One row of a thread, on the short way: x comes in, codes go out. kPlain: see IsPlain.
template <typename Pair, RowKind kKind, typename Owner, int kElements, bool kPlain>
class ModerateRow {
 public:
  using Columns = QuantizedColumns<Pair, kKind, Owner, kElements>;
  using X = typename Columns::X;
  using Granule = typename Columns::Granule;
  using Affine = typename Columns::Affine;
  static constexpr int V = Columns::V;
  static constexpr int kGranules = Columns::kGranules;
  static constexpr int kTogether = Columns::kTogether;

  __device__ ModerateRow(const RowForwardParams& p, const QuantizedRequest& request,
                         const Columns& columns, Owner& owner, int64_t index, bool exists)
      : p_(p),
        request_(request),
        columns_(columns),
        owner_(owner),
        index_(index),
        exists_(exists),
        y_(static_cast<uint8_t*>(p.y) + index * p.hidden_size + columns.first()) {}

  /// False, and nothing written, where the row does not allow it. fetch(from, affine): weights;
  /// take(x); done(): memory of x is in use no more.
  template <bool kScalesRows, typename Fetch, typename Take, typename Done>
  __device__ bool Write(Fetch&& fetch, Take&& take, Done&& done) {
    if constexpr (kKind == RowKind::kRms) {
      return WriteRms<kScalesRows>(fetch, take, done);
    } else {
      return WriteLayer<kScalesRows>(fetch, take, done);
    }
  }

 private:
  /// y = rstd * t with t = x * weight, so y / row_scale = t * (largest code / largest |t|).
  template <bool kScalesRows, typename Fetch, typename Take, typename Done>
  __device__ bool WriteRms(Fetch&& fetch, Take&& take, Done&& done) {
    float products[kGranules][V];
    float thread_largest = 0.0F;
    Affine affine;
    fetch(0, affine);
    Granule x[kGranules];
    take(x);
    float none;
    float sum;
    SumsOfThread<false>(x, none, sum);
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      if (g != 0 && g % kTogether == 0) fetch(g, affine);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float weight = affine.weight[g % kTogether].Wide(i);
        products[g][i] =
            x[g].Wide(i) * (kPlain ? weight : weight + static_cast<float>(p_.weight_offset));
      }
      if (kScalesRows) TakeLargest(g, products[g], thread_largest);
    }
    float largest = 1.0F;
    if constexpr (kScalesRows) {
      uint32_t largest_bits = __float_as_uint(thread_largest);
      owner_.SumAndLargest(sum, largest_bits);
      largest = __uint_as_float(largest_bits);
    } else {
      owner_.SumOne(sum);
    }
    done();
    const float mean_square = sum * request_.inverse_size;
    if (!(IsModerate(largest) && IsModerate(mean_square))) return false;
    float factor;
    if constexpr (kScalesRows) {
      factor = ModerateQuotient(request_.largest_code, largest);
      if (IsFirst()) {
        const float rstd = ModerateReciprocalRoot(mean_square + request_.eps);
        StoreStatistics(0.0F, rstd);
        p_.row_scale[index_] = ModerateQuotient(largest * rstd, request_.largest_code);
      }
    } else {
      const float rstd = ModerateReciprocalRoot(mean_square + request_.eps);
      factor = rstd * p_.inverse_y_scale;
      if (IsFirst()) StoreStatistics(0.0F, rstd);
    }
    StoreCodes<kScalesRows>(factor, products);
    return true;
  }

  /// Mean and variance from the sums of elements and squares, which is accurate while the mean is not
  /// many times the deviation.
  template <bool kScalesRows, typename Fetch, typename Take, typename Done>
  __device__ bool WriteLayer(Fetch&& fetch, Take&& take, Done&& done) {
    constexpr float kMostMeanSquare = 4.0F;  // in units of the variance
    Granule x[kGranules];
    take(x);
    float row_sum;
    float row_squares;
    SumsOfThread<true>(x, row_sum, row_squares);
    Affine affine;
    fetch(0, affine);
    owner_.SumTwo(row_sum, row_squares);
    done();
    const float mean = row_sum * request_.inverse_size;
    // What f32 does not hold of the mean.
    const float left = fmaf(-mean, request_.size, row_sum) * request_.inverse_size;
    const float mean_square = mean * mean;
    const float variance = fmaf(row_squares, request_.inverse_size, -mean_square);
    bool moderate = IsModerate(variance) && mean_square <= kMostMeanSquare * variance;
    // Rows that share a warp stay together until their last exchange.
    if (!Owner::AnyRow(moderate)) return false;
    const float rstd = ModerateReciprocalRoot(variance + request_.eps);
    const float scaled_left = -left * rstd;
    float y[kGranules][V];
    float thread_largest = 0.0F;
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      if (g != 0 && g % kTogether == 0) fetch(g, affine);
      const int k = g % kTogether;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        y[g][i] = fmaf(fmaf(x[g].Wide(i) - mean, rstd, scaled_left), affine.weight[k].Wide(i),
                       affine.bias[k].Wide(i));
      }
      if constexpr (kScalesRows) {
        TakeLargest(g, y[g], thread_largest);
      } else if (moderate) {
        Store<F8E4M3>(g, p_.inverse_y_scale, y[g]);
      }
    }
    float largest = 1.0F;
    if constexpr (kScalesRows) {
      largest = __uint_as_float(owner_.Largest(__float_as_uint(thread_largest)));
      moderate = moderate && IsModerate(largest);
    }
    if (!moderate) return false;
    if (IsFirst()) {
      StoreStatistics(mean, rstd);
      if (kScalesRows) p_.row_scale[index_] = ModerateQuotient(largest, request_.largest_code);
    }
    if constexpr (kScalesRows) {
      StoreCodes<true>(ModerateQuotient(request_.largest_code, largest), y);
    }
    return true;
  }

  /// The thread's parts of the sum (kSums) and of the sum of squares.
  template <bool kSums>
  __device__ static void SumsOfThread(const Granule (&x)[kGranules], float& sum, float& squares) {
    // Few elements are added sooner than products follow each other through a tensor core.
    constexpr int kFewElements = 32;
    constexpr bool kByTensors = kHasTensorSquares<X> && kElements > kFewElements;
    constexpr int kChains = 4;  // independent of each other
    float sum_of[kChains];
    float squares_of[kChains];
    if constexpr (kSums || !kByTensors) {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const float value = x[g].Wide(i);
          const int k = i % kChains;
          const bool first = g * V + i < kChains;
          if (kSums) sum_of[k] = first ? value : sum_of[k] + value;
          if (!kByTensors)
            squares_of[k] = first ? value * value : fmaf(value, value, squares_of[k]);
        }
      }
    }
    if (kSums) sum = (sum_of[0] + sum_of[1]) + (sum_of[2] + sum_of[3]);
    if constexpr (kByTensors) {
      TensorSquares<X> tensor;
#pragma unroll
      for (int g = 0; g < kGranules; ++g) tensor.Add(x[g]);
      squares = tensor.Squares();
    } else {
      squares = (squares_of[0] + squares_of[1]) + (squares_of[2] + squares_of[3]);
    }
  }

  /// Two values at a time, and two of those maxima.
  __device__ void TakeLargest(int g, const float (&values)[V], float& largest) const {
    uint32_t of_granule = 0;
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      const float first = MaxMagnitude(values[i], values[i + 1]);
      const float second = MaxMagnitude(values[i + 2], values[i + 3]);
      of_granule = max(of_granule, max(__float_as_uint(first), __float_as_uint(second)));
    }
    if (kPlain || columns_.Holds(g)) {
      largest = __uint_as_float(max(__float_as_uint(largest), of_granule));
    }
  }

  __device__ bool IsFirst() const { return exists_ && Owner::IsStatistician(); }

  template <typename Format>
  __device__ void Store(int g, float factor, const float (&values)[V]) const {
    auto codes = Format::Quantize(values, factor);
    codes.Forget();  // not computed in the branch
    if (exists_ && (kPlain || columns_.Holds(g))) {
      codes.Store(y_ + g * Columns::kStep, kPlain || p_.aligned);
    }
  }

  template <bool kScalesRows>
  __device__ void StoreCodes(float factor, const float (&y)[kGranules][V]) const {
    if (kScalesRows && request_.is_int8) {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) Store<Int8>(g, factor, y[g]);
    } else {
#pragma unroll
      for (int g = 0; g < kGranules; ++g) Store<F8E4M3>(g, factor, y[g]);
    }
  }

  __device__ void StoreStatistics(float mean, float rstd) const {
    if (kKind == RowKind::kLayer && p_.mean != nullptr) static_cast<float*>(p_.mean)[index_] = mean;
    if (p_.rstd != nullptr) static_cast<float*>(p_.rstd)[index_] = rstd;
  }

  const RowForwardParams& p_;
  const QuantizedRequest& request_;
  const Columns& columns_;
  Owner& owner_;
  int64_t index_;
  bool exists_;
  uint8_t* y_;
};

}  // namespace norm_device
