// Sums of a column of granules with values of at most two channels: element by element in f32 over
// a few images, then channel by channel in f64.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_ring_math.cuh"

namespace norm_device {

#if NORM_HAVE_RING

/// The thread's slots, for a second look at values that f32 could not square.
struct FoldedSlots {
  uint32_t begin;
  uint32_t end;
  uint32_t step_bytes;
  uint32_t granule_stride;
  int split;
};

/// Images that f32 sums span.
inline constexpr int kFoldedTile = 32;

template <typename X, typename Op>
class FoldedSums;

template <typename X>
class FoldedSums<X, ForwardRing<X>> {
  using Op = ForwardRing<X>;
  static constexpr int kElements = Op::kElements;
  static constexpr int kUnroll = Op::kFoldedTraits.unroll;

 public:
  __device__ void Start(const float (&centres)[2], int, float smallest_square) {
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
      WideGranule<X>::Widen(raw[0][0], origin_);
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
      uint32_t again = 0;  // elements to square in f64
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if (squares_[i] < kLargest && squares_[i] >= smallest_square_) {
          Take(i >= slots.split, origin_[i], static_cast<double>(sums_[i]),
               static_cast<double>(squares_[i]));
        } else {
          again |= 1U << i;
        }
      }
      while (again != 0) {
        const int element = __ffs(static_cast<int>(again)) - 1;
        again &= again - 1;
        TakeAgain(slots, element);
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

  __device__ void Take(bool second, float origin, double sum, double squares) {
    const double offset =
        static_cast<double>(origin) - static_cast<double>(second ? centres_[1] : centres_[0]);
    const double moved = static_cast<double>(count_) * offset;
    const double to_sum = sum + moved;
    const double to_squares = fma(offset, fma(2.0, sum, moved), squares);
    totals_[0][0] += second ? 0.0 : to_sum;
    totals_[1][0] += second ? 0.0 : to_squares;
    totals_[0][1] += second ? to_sum : 0.0;
    totals_[1][1] += second ? to_squares : 0.0;
  }

  /// One element of the tile's images, from the thread's slots.
  __device__ void TakeAgain(const FoldedSlots& slots, int element) {
    float origin = 0;
    double sum = 0.0;
    double squares = 0.0;
    uint32_t slot = first_slot_;
#pragma unroll 1
    for (int image = 0; image < count_; ++image) {
      float values[kElements];
      WideGranule<X>::Widen(LoadShared(slot + image % kUnroll * slots.granule_stride), values);
      float value = 0;
#pragma unroll
      for (int i = 0; i < kElements; ++i) value = i == element ? values[i] : value;
      if (image == 0) origin = value;
      const double d = static_cast<double>(value) - static_cast<double>(origin);
      sum += d;
      squares = fma(d, d, squares);
      if (image % kUnroll == kUnroll - 1) {
        slot = slot + slots.step_bytes == slots.end ? slots.begin : slot + slots.step_bytes;
      }
    }
    Take(element >= slots.split, origin, sum, squares);
  }

  float origin_[kElements] = {};
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

  __device__ void Flush(const FoldedSlots& slots) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const bool second = i >= slots.split;
#pragma unroll
      for (int k = 0; k < Op::kSums; ++k) {
        const double sum = static_cast<double>(sums_[k][i]);
        totals_[k][0] += second ? 0.0 : sum;
        totals_[k][1] += second ? sum : 0.0;
      }
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
  float centres_[2] = {};
  float sums_[Op::kSums][kElements] = {};
  double totals_[Op::kSums][2] = {};
  int steps_ = 0;
};

#endif  // NORM_HAVE_RING

}  // namespace norm_device
