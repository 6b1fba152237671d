// Sums of squares of 16-bit elements by matrix multiply-adds, which take half the instructions of
// scalar ones. Products are exact; sums are in f32 and cut off, so a sum comes out too small by a few
// units in its last place, which a sum of both signs would not bear. Compute capability 8.0; below,
// kHasTensorSquares is false.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/packed_granule.cuh"

namespace norm_device {

template <typename X>
inline constexpr bool kHasTensorSquares =
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

/// Sum of the squares of granules of 8 elements of each lane. Four lanes with consecutive numbers add
/// theirs up: over them (and so over whole rows of lanes) the parts of the sum are complete. All
/// lanes of a warp call Add together.
template <typename X>
class TensorSquares {
 public:
  __device__ void Add(const PackedGranule<X, 8>& granule) {
    const auto& words = granule.words;
    // Two words of the lanes are the rows of a matrix. Its product with the transpose of either
    // half has the squares of that half's rows on a diagonal. Four products that do not wait for
    // each other.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      MultiplyAdd<X>(squares_[i], words[i / 2 * 2], words[i / 2 * 2 + 1], words[i]);
    }
  }

  /// This lane's part of the sum of squares.
  __device__ float Squares() const {
    const int row = static_cast<int>(threadIdx.x) / 4 % 8;
    const float even = (squares_[0][0] + squares_[1][2]) + (squares_[2][0] + squares_[3][2]);
    const float odd = (squares_[0][1] + squares_[1][3]) + (squares_[2][1] + squares_[3][3]);
    if (static_cast<int>(threadIdx.x) % 4 != row / 2) return 0.0F;
    return row % 2 == 0 ? even : odd;
  }

 private:
  float squares_[4][4] = {};
};

}  // namespace norm_device
