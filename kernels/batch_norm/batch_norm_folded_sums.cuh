// Sums of a column of granules with values of at most two channels: element by element in f32 over
// a few images, then channel by channel in f64.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_folded_place.cuh"

namespace norm_device {

#if NORM_HAVE_RING

/// Images that f32 sums span.
inline constexpr int kFoldedTile = 32;

/// Sums of the values before and from `split` on, by pairs.
template <int kElements>
__device__ __forceinline__ void SumHalves(const float (&values)[kElements], int split,
                                          float (&halves)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float parts[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) parts[i] = (i < split) == (half == 0) ? values[i] : 0.0F;
#pragma unroll
    for (int width = kElements / 2; width > 0; width /= 2) {
#pragma unroll
      for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
    }
    halves[half] = parts[0];
  }
}

template <typename X, typename Op>
class FoldedSums;

template <typename X>
class FoldedSums<X, ForwardRing<X>> {
  using Op = ForwardRing<X>;
  static constexpr int kElements = Op::kElements;
  static constexpr int kUnroll = Op::kFoldedTraits.unroll;

 public:
  __device__ void Start(const float (&centres)[2], int split, float smallest_square) {
    split_ = split;
    smallest_square_ = smallest_square;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      centres_[half] = centres[half];
#pragma unroll
      for (int k = 0; k < Op::kSums; ++k) totals_[k][half] = 0.0;
    }
    Clear();
  }

  __device__ __forceinline__ void Add(const uint4 (&raw)[1][kUnroll], int inside, uint32_t slot) {
    if (steps_ == 0) {
      first_slot_ = slot;
      float values[kElements];
      WideGranule<X>::Widen(raw[0][0], values);
      origins_[0] = values[0];
      origins_[1] = values[kElements - 1];
#pragma unroll
      for (int i = 0; i < kElements; ++i) origin_[i] = i < split_ ? origins_[0] : origins_[1];
    }
    ++steps_;
    count_ += inside;
    // Whole steps apart from the last of a slice: else every sum would be kept or taken by a select.
    if (inside == kUnroll) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) AddGranule(raw[0][u]);
    } else if (inside > 0) {
      static_assert(kUnroll == 2);
      AddGranule(raw[0][0]);
    }
  }
  __device__ bool Full() const { return steps_ == kFoldedTile / kUnroll; }

  __device__ void Flush(const FoldedSlots& slots) {
    if (count_ > 0) {
      constexpr float kLargest = 3e38F;
      float sums[2];
      float squares[2];
      SumHalves<kElements>(sums_, split_, sums);
      SumHalves<kElements>(squares_, split_, squares);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (half == 1 && split_ == kElements) break;
        if (squares[half] < kLargest && squares[half] >= smallest_square_) {
          Take(half, static_cast<double>(sums[half]), static_cast<double>(squares[half]));
        } else {
          const double2 again =
              WideSums<X, kUnroll>(slots, first_slot_, count_, split_, half, origins_[half]);
          Take(half, again.x, again.y);
        }
      }
    }
    Clear();
  }

  __device__ double Total(int k, int half) const { return totals_[k][half]; }
  __device__ float Centre(int half) const { return centres_[half]; }

 private:
  __device__ void Clear() {
    count_ = 0;
    steps_ = 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      sums_[i] = 0;
      squares_[i] = 0;
    }
  }
  __device__ __forceinline__ void AddGranule(const uint4& granule) {
    float values[kElements];
    WideGranule<X>::Widen(granule, values);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float d = values[i] - origin_[i];
      sums_[i] += d;
      squares_[i] = fmaf(d, d, squares_[i]);
    }
  }

  __device__ void Take(int half, double sum, double squares) {
    const double offset = static_cast<double>(origins_[half]) - static_cast<double>(centres_[half]);
    const double moved =
        static_cast<double>(count_ * (half == 0 ? split_ : kElements - split_)) * offset;
    totals_[0][half] += sum + moved;
    totals_[1][half] += fma(offset, fma(2.0, sum, moved), squares);
  }

  float origin_[kElements] = {};
  float origins_[2] = {};
  int split_ = kElements;
  float sums_[kElements] = {};
  float squares_[kElements] = {};
  double totals_[Op::kSums][2] = {};
  float centres_[2] = {};
  float smallest_square_ = 0;
  uint32_t first_slot_ = 0;
  int count_ = 0;  // images
  int steps_ = 0;
};

template <typename X>
class FoldedSums<X, BackwardRing<X>> {
  using Op = BackwardRing<X>;
  static constexpr int kElements = Op::kElements;
  static constexpr int kUnroll = Op::kFoldedTraits.unroll;

 public:
  __device__ void Start(const float (&centres)[2], int split, float) {
    split_ = split;
    centres_[0] = centres[0];
    centres_[1] = centres[1];
#pragma unroll
    for (int i = 0; i < kElements; ++i) centre_[i] = i < split ? centres[0] : centres[1];
#pragma unroll
    for (int k = 0; k < Op::kSums; ++k) totals_[k][0] = totals_[k][1] = 0.0;
    Clear();
  }

  __device__ __forceinline__ void Add(const uint4 (&raw)[2][kUnroll], int inside, uint32_t) {
    ++steps_;
    if (inside == kUnroll) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) AddGranules(raw[0][u], raw[1][u]);
    } else if (inside > 0) {
      static_assert(kUnroll == 2);
      AddGranules(raw[0][0], raw[1][0]);
    }
  }
  __device__ bool Full() const { return steps_ == kFoldedTile / kUnroll; }

  __device__ void Flush(const FoldedSlots&) {
#pragma unroll
    for (int k = 0; k < Op::kSums; ++k) {
      float halves[2];
      SumHalves<kElements>(sums_[k], split_, halves);
      totals_[k][0] += static_cast<double>(halves[0]);
      totals_[k][1] += static_cast<double>(halves[1]);
    }
    Clear();
  }

  __device__ double Total(int k, int half) const { return totals_[k][half]; }
  __device__ float Centre(int half) const { return centres_[half]; }

 private:
  __device__ __forceinline__ void AddGranules(const uint4& x_granule, const uint4& dy_granule) {
    float x[kElements];
    float dy[kElements];
    WideGranule<X>::Widen(x_granule, x);
    WideGranule<X>::Widen(dy_granule, dy);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float d = x[i] - centre_[i];
      sums_[0][i] += dy[i];
      sums_[1][i] = fmaf(dy[i], d, sums_[1][i]);
      sums_[2][i] += d;
    }
  }

  __device__ void Clear() {
    steps_ = 0;
#pragma unroll
    for (int k = 0; k < Op::kSums; ++k) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) sums_[k][i] = 0;
    }
  }

  float centre_[kElements] = {};
  int split_ = kElements;
  float centres_[2] = {};
  float sums_[Op::kSums][kElements] = {};
  double totals_[Op::kSums][2] = {};
  int steps_ = 0;
};

#endif  // NORM_HAVE_RING

}  // namespace norm_device
