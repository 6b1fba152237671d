// One-byte formats: f32 values scaled, rounded to the nearest and packed four to a register.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace norm_device {

/// V consecutive bytes of one thread; V is 1, or a multiple of 4.
template <int V>
struct PackedBytes {
  static constexpr int kWords = (V + 3) / 4;

  uint32_t words[kWords];

  /// The compiler forgets how the words are computed.
  __device__ void Forget() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(words[i]));
  }

  /// `aligned`: the address is a multiple of V.
  __device__ void Store(uint8_t* destination, bool aligned) const {
    if constexpr (V == 1) {
      *destination = static_cast<uint8_t>(words[0]);
    } else if (aligned) {
      if constexpr (V == 4) {
        *reinterpret_cast<uint32_t*>(destination) = words[0];
      } else {
        static_assert(V == 8);
        *reinterpret_cast<uint2*>(destination) = make_uint2(words[0], words[1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        destination[i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
      }
    }
  }
};

/// f8e4m3: ties to even; past the largest value, that value; NaN is 0x7F.
struct F8E4M3 {
  static constexpr float kLargest = 448.0F;

  /// values[i] * factor.
  template <int V>
  static __device__ PackedBytes<V> Quantize(const float (&values)[V], float factor) {
    PackedBytes<V> bytes;
    if constexpr (V == 1) {
      bytes.words[0] = EncodeFour(values[0] * factor, 0.0F, 0.0F, 0.0F);
    } else {
#pragma unroll
      for (int i = 0; i < V; i += 4) {
        bytes.words[i / 4] = EncodeFour(values[i] * factor, values[i + 1] * factor,
                                        values[i + 2] * factor, values[i + 3] * factor);
      }
    }
    return bytes;
  }

  /// In integer arithmetic, for devices without the instruction.
  static __device__ uint32_t EncodeByBits(float value) {
    constexpr uint32_t kInfinityBits = 0x7F800000U;
    constexpr uint32_t kLargestBits = 0x43E00000U;         // 448
    constexpr uint32_t kSmallestNormalBits = 0x3C800000U;  // 2^-6
    constexpr uint32_t kBiasDifference = (127 - 7) << 3;
    constexpr float kSubnormalShift = 16384.0F;  // leaves units of 2^-9 in the low bits of a sum
    const uint32_t bits = __float_as_uint(value);
    const uint32_t magnitude = bits & 0x7FFFFFFFU;
    if (magnitude > kInfinityBits) return 0x7FU;
    const uint32_t clamped = min(magnitude, kLargestBits);
    const uint32_t rounded = (clamped + 0x7FFFFU + ((clamped >> 20) & 1U)) >> 20;
    const uint32_t shifted = __float_as_uint(__uint_as_float(clamped) + kSubnormalShift);
    const uint32_t code = clamped < kSmallestNormalBits ? shifted - __float_as_uint(kSubnormalShift)
                                                        : rounded - kBiasDifference;
    return code | ((bits >> 24) & 0x80U);
  }

 private:
  /// From the lowest byte on.
  static __device__ uint32_t EncodeFour(float first, float second, float third, float fourth) {
#if __CUDA_ARCH__ >= 890
    uint32_t four;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(four)
        : "f"(first), "f"(second), "f"(third), "f"(fourth));
    return four;
#else
    return EncodeByBits(first) | EncodeByBits(second) << 8 | EncodeByBits(third) << 16 |
           EncodeByBits(fourth) << 24;
#endif
  }
};

/// int8, ties to even, of products in [-127, 127].
struct Int8 {
  static constexpr float kLargest = 127.0F;

  /// values[i] * factor.
  template <int V>
  static __device__ PackedBytes<V> Quantize(const float (&values)[V], float factor) {
    // 1.5 * 2^23: the sum is an integer, its low byte that of the product in two's complement.
    constexpr float kShift = 12582912.0F;
    PackedBytes<V> bytes;
    if constexpr (V == 1) {
      bytes.words[0] = __float_as_uint(fmaf(values[0], factor, kShift));
    } else {
#pragma unroll
      for (int i = 0; i < V; i += 4) {
        uint32_t sums[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[k] = __float_as_uint(fmaf(values[i + k], factor, kShift));
        const uint32_t low = __byte_perm(sums[0], sums[1], 0x0040);
        const uint32_t high = __byte_perm(sums[2], sums[3], 0x0040);
        bytes.words[i / 4] = __byte_perm(low, high, 0x5410);
      }
    }
    return bytes;
  }
};

/// The larger of |a| and |b|; NaN if one of them is.
__device__ inline float MaxMagnitude(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(fabsf(a)), "f"(fabsf(b)));
  return result;
#else
  // As bits, magnitudes are ordered like integers, with infinity and NaN above all others.
  return __uint_as_float(max(__float_as_uint(fabsf(a)), __float_as_uint(fabsf(b))));
#endif
}

}  // namespace norm_device
