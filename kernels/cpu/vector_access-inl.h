// Loads and stores of every element type as vectors of double, for one Highway target per
// inclusion.
#if defined(NORM_CPU_VECTOR_ACCESS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORM_CPU_VECTOR_ACCESS_INL_H_
#undef NORM_CPU_VECTOR_ACCESS_INL_H_
#else
#define NORM_CPU_VECTOR_ACCESS_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "cpu/element.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace norm::internal::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DoubleTag = hn::ScalableTag<double>;
using FloatTag = hn::Rebind<float, DoubleTag>;  // as many lanes as DoubleTag
using DoubleVector = hn::Vec<DoubleTag>;
using FloatVector = hn::Vec<FloatTag>;

// SSE2 has no f16 conversion, and Highway's substitute truncates and mistakes infinities.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
inline constexpr bool kHasF16 = true;
#else
inline constexpr bool kHasF16 = false;
#endif

HWY_INLINE int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(DoubleTag())); }

HWY_INLINE FloatVector LoadFloats(const float* from) { return hn::LoadU(FloatTag(), from); }

HWY_INLINE FloatVector LoadFloats(const BFloat16* from) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::Rebind<uint32_t, FloatTag> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

HWY_INLINE FloatVector LoadFloats(const Half* from) {
  if constexpr (kHasF16) {
    const hn::Rebind<hwy::float16_t, FloatTag> d16;
    return hn::PromoteTo(FloatTag(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
  } else {
    HWY_ALIGN float floats[hn::MaxLanes(FloatTag())];
    for (size_t i = 0; i < hn::Lanes(FloatTag()); ++i) {
      floats[i] = ToFloat(from[i]);
    }
    return hn::Load(FloatTag(), floats);
  }
}

HWY_INLINE void StoreFloats(FloatVector values, float* to) { hn::StoreU(values, FloatTag(), to); }

HWY_INLINE void StoreFloats(FloatVector values, BFloat16* to) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::Rebind<uint32_t, FloatTag> d32;
  const hn::Rebind<int32_t, FloatTag> s32;
  const auto bits = hn::BitCast(d32, values);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF))));
  const auto quiet = hn::Or(high, hn::Set(d32, 0x40));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(values));
  const auto result = hn::IfThenElse(is_nan, quiet, rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(s32, result)), d16, reinterpret_cast<uint16_t*>(to));
}

HWY_INLINE void StoreFloats(FloatVector values, Half* to) {
  if constexpr (kHasF16) {
    const hn::Rebind<hwy::float16_t, FloatTag> d16;
    hn::StoreU(hn::DemoteTo(d16, values), d16, reinterpret_cast<hwy::float16_t*>(to));
  } else {
    HWY_ALIGN float floats[hn::MaxLanes(FloatTag())];
    hn::Store(values, FloatTag(), floats);
    for (size_t i = 0; i < hn::Lanes(FloatTag()); ++i) {
      to[i] = ToHalf(floats[i]);
    }
  }
}

template <typename T>
HWY_INLINE DoubleVector LoadVector(const T* from) {
  return hn::PromoteTo(DoubleTag(), LoadFloats(from));
}
HWY_INLINE DoubleVector LoadVector(const double* from) { return hn::LoadU(DoubleTag(), from); }

template <typename T>
HWY_INLINE void StoreVector(DoubleVector values, T* to) {
  StoreFloats(hn::DemoteTo(FloatTag(), values), to);
}
HWY_INLINE void StoreVector(DoubleVector values, double* to) {
  hn::StoreU(values, DoubleTag(), to);
}

/// Rounds each lane to T and back.
template <typename T>
HWY_INLINE DoubleVector RoundTo(DoubleVector values) {
  T rounded[hn::MaxLanes(DoubleTag())];
  StoreVector(values, rounded);
  return LoadVector(rounded);
}
template <>
HWY_INLINE DoubleVector RoundTo<double>(DoubleVector values) {
  return values;
}
template <>
HWY_INLINE DoubleVector RoundTo<float>(DoubleVector values) {
  return hn::PromoteTo(DoubleTag(), hn::DemoteTo(FloatTag(), values));
}

/// Access to all lanes at an address.
struct FullVector {
  template <typename T>
  HWY_INLINE DoubleVector Load(const T* from) const {
    return LoadVector(from);
  }
  template <typename T>
  HWY_INLINE void Store(DoubleVector values, T* to) const {
    StoreVector(values, to);
  }
  /// Zeroes the lanes that hold no element.
  HWY_INLINE DoubleVector Mask(DoubleVector values) const { return values; }
};

/// Access to the first `count` elements only; other lanes load as zero and are not stored.
struct PartialVector {
  int64_t count;

  template <typename T>
  HWY_INLINE DoubleVector Load(const T* from) const {
    T padded[hn::MaxLanes(DoubleTag())] = {};
    for (int64_t i = 0; i < count; ++i) {
      padded[i] = from[i];
    }
    return LoadVector(padded);
  }
  template <typename T>
  HWY_INLINE void Store(DoubleVector values, T* to) const {
    T padded[hn::MaxLanes(DoubleTag())];
    StoreVector(values, padded);
    for (int64_t i = 0; i < count; ++i) {
      to[i] = padded[i];
    }
  }
  HWY_INLINE DoubleVector Mask(DoubleVector values) const {
    return hn::IfThenElseZero(hn::FirstN(DoubleTag(), static_cast<size_t>(count)), values);
  }
};

HWY_INLINE double SumLanes(DoubleVector values) {
  return hn::GetLane(hn::SumOfLanes(DoubleTag(), values));
}

/// Calls body(access, i) for the vectors that cover [0, count), the last one partial where needed.
template <typename Body>
HWY_INLINE void ForEachVector(int64_t count, const Body& body) {
  const int64_t lanes = Lanes();
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    body(FullVector(), i);
  }
  if (i < count) {
    body(PartialVector{count - i}, i);
  }
}

/// As ForEachVector, with the number k in [0, 4) of one of four independent accumulators as a
/// constant: body(access, i, std::integral_constant<int, k>). Which vector meets which accumulator
/// depends on `count` only.
template <typename Body>
HWY_INLINE void ForEachVectorUnrolled(int64_t count, const Body& body) {
  const int64_t lanes = Lanes();
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    body(FullVector(), i, std::integral_constant<int, 0>());
    body(FullVector(), i + lanes, std::integral_constant<int, 1>());
    body(FullVector(), i + 2 * lanes, std::integral_constant<int, 2>());
    body(FullVector(), i + 3 * lanes, std::integral_constant<int, 3>());
  }
  for (; i + lanes <= count; i += lanes) {
    body(FullVector(), i, std::integral_constant<int, 0>());
  }
  if (i < count) {
    body(PartialVector{count - i}, i, std::integral_constant<int, 1>());
  }
}

/// Four vectors that a reduction adds into in turn.
struct Accumulators {
  HWY_INLINE Accumulators() : v0(hn::Zero(DoubleTag())), v1(v0), v2(v0), v3(v0) {}

  template <int k>
  HWY_INLINE DoubleVector& At(std::integral_constant<int, k>) {
    if constexpr (k == 0) {
      return v0;
    } else if constexpr (k == 1) {
      return v1;
    } else if constexpr (k == 2) {
      return v2;
    } else {
      return v3;
    }
  }
  HWY_INLINE double Sum() const { return SumLanes(hn::Add(hn::Add(v0, v1), hn::Add(v2, v3))); }

  DoubleVector v0;
  DoubleVector v1;
  DoubleVector v2;
  DoubleVector v3;
};

}  // namespace norm::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
