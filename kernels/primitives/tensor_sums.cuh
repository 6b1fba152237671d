// Sums and sums of squares of 16-bit elements by matrix multiply-adds, which take a tenth of the
// instructions of additions. Products are exact, sums in f32. Compute capability 8.0; below,
// kHasTensorSums is false.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/packed_granule.cuh"

namespace norm_device {

template <typename X>
inline constexpr bool kHasTensorSums =
#if __CUDA_ARCH__ >= 800
    sizeof(StorageOf<X>) == 2;
#else
    false;
#endif

/// c += a * b of 16 x 8 and 8 x 8 elements, spread over the lanes of a warp.
template <typename X>
__device__ void MultiplyAdd(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<X, BF16>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
  }
#endif
}

/// c += a of 16 x 16 elements, its rows added up into every column.
template <typename X>
__device__ void AddRows(float (&c)[4], const uint32_t (&a)[4]) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<X, BF16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %8}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(0x3F803F80U));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %8}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(0x3C003C00U));
  }
#endif
}

/// Of granules of 8 elements of each lane. Four lanes with consecutive numbers add theirs up: over
/// them (and so over whole rows of lanes) the parts of a sum are complete. All lanes of a warp call
/// Add together.
template <typename X>
class TensorSums {
 public:
  template <bool kSums>
  __device__ void Add(const PackedGranule<X, 8>& granule) {
    const auto& words = granule.words;
    // Two words of the lanes are the rows of a matrix. Its product with the transpose of either
    // half has the squares of that half's rows on a diagonal. Four products that do not wait for
    // each other.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      MultiplyAdd<X>(squares_[i], words[i / 2 * 2], words[i / 2 * 2 + 1], words[i]);
    }
    if constexpr (kSums) AddRows<X>(sums_, words);
  }

  /// This lane's part of the sum of squares.
  __device__ float Squares() const {
    const int row = static_cast<int>(threadIdx.x) / 4 % 8;
    const float even = (squares_[0][0] + squares_[1][2]) + (squares_[2][0] + squares_[3][2]);
    const float odd = (squares_[0][1] + squares_[1][3]) + (squares_[2][1] + squares_[3][3]);
    if (static_cast<int>(threadIdx.x) % 4 != row / 2) return 0.0F;
    return row % 2 == 0 ? even : odd;
  }
  /// This lane's part of the sum.
  __device__ float Sum() const { return threadIdx.x % 4 == 0 ? sums_[0] + sums_[2] : 0.0F; }

 private:
  float squares_[4][4] = {};
  float sums_[4] = {};
};

}  // namespace norm_device
