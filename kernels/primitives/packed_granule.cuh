// Consecutive elements in registers as they lie in memory, two 16-bit elements to a register.
// (As an array of 16-bit values each would take a register of its own.)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "primitives/element_access.cuh"

namespace norm_device {

/// One element of type Tag, or two, in 32-bit words.
template <typename Tag>
struct WordCodec;

template <>
struct WordCodec<F32> {
  static __device__ float Widen(const uint32_t* words, int i) { return __uint_as_float(words[i]); }
  template <int V>
  static __device__ void Narrow(const float (&values)[V], uint32_t* words) {
#pragma unroll
    for (int i = 0; i < V; ++i) words[i] = __float_as_uint(values[i]);
  }
};

template <>
struct WordCodec<F64> {
  static __device__ double Widen(const uint32_t* words, int i) {
    return __hiloint2double(static_cast<int>(words[2 * i + 1]), static_cast<int>(words[2 * i]));
  }
  template <int V>
  static __device__ void Narrow(const double (&values)[V], uint32_t* words) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      words[2 * i] = static_cast<uint32_t>(__double2loint(values[i]));
      words[2 * i + 1] = static_cast<uint32_t>(__double2hiint(values[i]));
    }
  }
};

template <>
struct WordCodec<BF16> {
  static __device__ float Widen(const uint32_t* words, int i) {
    return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000U);
  }
  template <int V>
  static __device__ void Narrow(const float (&values)[V], uint32_t* words) {
    if constexpr (V == 1) {
      words[0] = __bfloat16_as_ushort(__float2bfloat16_rn(values[0]));
    } else {
#pragma unroll
      for (int i = 0; i < V; i += 2) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(values[i], values[i + 1]);
        words[i / 2] = reinterpret_cast<const uint32_t&>(two);
      }
    }
  }
};

template <>
struct WordCodec<F16> {
  static __device__ float Widen(const uint32_t* words, int i) {
    const uint32_t bits = i % 2 == 0 ? words[i / 2] & 0xffffU : words[i / 2] >> 16;
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  }
  template <int V>
  static __device__ void Narrow(const float (&values)[V], uint32_t* words) {
    if constexpr (V == 1) {
      words[0] = __half_as_ushort(__float2half_rn(values[0]));
    } else {
#pragma unroll
      for (int i = 0; i < V; i += 2) {
        const __half2 two = __floats2half2_rn(values[i], values[i + 1]);
        words[i / 2] = reinterpret_cast<const uint32_t&>(two);
      }
    }
  }
};

/// V consecutive elements that one thread owns; V * size is less than 4 bytes, or a multiple.
template <typename Tag, int V>
struct PackedGranule {
  using Storage = StorageOf<Tag>;
  using C = ComputeOf<Tag>;
  static constexpr int kBytes = V * static_cast<int>(sizeof(Storage));
  static constexpr int kWords = (kBytes + 3) / 4;

  uint32_t words[kWords];

  __device__ C Wide(int i) const { return WordCodec<Tag>::Widen(words, i); }

  static __device__ PackedGranule Zero() {
    PackedGranule granule;
#pragma unroll
    for (int i = 0; i < kWords; ++i) granule.words[i] = 0;
    return granule;
  }

  __device__ PackedGranule<Tag, 1> First() const {
    PackedGranule<Tag, 1> one;
#pragma unroll
    for (int i = 0; i < PackedGranule<Tag, 1>::kWords; ++i) one.words[i] = words[i];
    if constexpr (sizeof(Storage) == 2) one.words[0] &= 0xffffU;
    return one;
  }

  static __device__ PackedGranule Filled(int value) {
    C values[V];
#pragma unroll
    for (int i = 0; i < V; ++i) values[i] = static_cast<C>(value);
    return Rounded(values);
  }

  static __device__ PackedGranule Repeated(const PackedGranule<Tag, 1>& one) {
    PackedGranule granule;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(Storage) == 2) {
        granule.words[i] = V == 1 ? one.words[0] : one.words[0] * 0x10001U;
      } else {
        granule.words[i] = one.words[i % PackedGranule<Tag, 1>::kWords];
      }
    }
    return granule;
  }

  static __device__ PackedGranule Rounded(const C (&values)[V]) {
    PackedGranule granule;
    WordCodec<Tag>::template Narrow<V>(values, granule.words);
    return granule;
  }

  /// `aligned`: the address is a multiple of kBytes or 16, whichever is less; the same for all
  /// threads.
  static __device__ PackedGranule Load(const Storage* source, bool aligned) {
    return Read(source, aligned, [](const auto* from) { return *from; });
  }
  /// Of data that nobody writes while the kernel runs.
  static __device__ PackedGranule LoadConstant(const Storage* source, bool aligned) {
    return Read(source, aligned, [](const auto* from) { return __ldg(from); });
  }

  __device__ void Store(Storage* destination, bool aligned) const {
    if constexpr (kBytes < 4) {
      *reinterpret_cast<uint16_t*>(destination) = static_cast<uint16_t>(words[0]);
    } else if (V == 1 || aligned) {
      using Unit = typename AccessUnit<(kBytes < 16 ? kBytes : 16)>::Type;
#pragma unroll
      for (int i = 0; i < kBytes / static_cast<int>(sizeof(Unit)); ++i) {
        reinterpret_cast<Unit*>(destination)[i] =
            *reinterpret_cast<const Unit*>(words + i * (sizeof(Unit) / 4));
      }
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if constexpr (sizeof(Storage) == 2) {
          reinterpret_cast<uint16_t*>(destination)[i] =
              static_cast<uint16_t>(i % 2 == 0 ? words[i / 2] & 0xffffU : words[i / 2] >> 16);
        } else {
          destination[i] = Wide(i);
        }
      }
    }
  }

  /// The compiler forgets what it knows of the values, such as their wide forms, instead of keeping
  /// those in registers too.
  __device__ void Forget() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(words[i]));
  }

 private:
  template <typename Fetch>
  static __device__ PackedGranule Read(const Storage* source, bool aligned, Fetch&& fetch) {
    PackedGranule granule;
    if constexpr (kBytes < 4) {
      granule.words[0] = fetch(reinterpret_cast<const uint16_t*>(source));
    } else if (V == 1 || aligned) {
      using Unit = typename AccessUnit<(kBytes < 16 ? kBytes : 16)>::Type;
#pragma unroll
      for (int i = 0; i < kBytes / static_cast<int>(sizeof(Unit)); ++i) {
        *reinterpret_cast<Unit*>(granule.words + i * (sizeof(Unit) / 4)) =
            fetch(reinterpret_cast<const Unit*>(source) + i);
      }
    } else if constexpr (sizeof(Storage) == 2) {
      const auto* halves = reinterpret_cast<const uint16_t*>(source);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        granule.words[i] = static_cast<uint32_t>(fetch(halves + 2 * i)) |
                           static_cast<uint32_t>(fetch(halves + 2 * i + 1)) << 16;
      }
    } else {
      constexpr int kUnitWords = static_cast<int>(sizeof(Storage)) / 4;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const Storage value = fetch(source + i);
#pragma unroll
        for (int k = 0; k < kUnitWords; ++k) {
          granule.words[i * kUnitWords + k] = reinterpret_cast<const uint32_t*>(&value)[k];
        }
      }
    }
    return granule;
  }
};

}  // namespace norm_device
