// Loads and stores of every element type as vectors of double or float, for one Highway target per
// inclusion.
#if defined(NORM_CPU_VECTOR_ACCESS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORM_CPU_VECTOR_ACCESS_INL_H_
#undef NORM_CPU_VECTOR_ACCESS_INL_H_
#else
#define NORM_CPU_VECTOR_ACCESS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/element.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace norm::internal::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DoubleTag = hn::ScalableTag<double>;
using HalfFloatTag = hn::Rebind<float, DoubleTag>;  // as many lanes as DoubleTag
using FloatTag = hn::ScalableTag<float>;
using DoubleVector = hn::Vec<DoubleTag>;
using FloatVector = hn::Vec<FloatTag>;

// The fallback has no f16 instructions, and the conversion that Highway puts there truncates and
// mistakes infinities.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
inline constexpr bool kHasF16 = true;
#else
inline constexpr bool kHasF16 = false;
#endif

HWY_INLINE int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(DoubleTag())); }

/// Loads and stores of whole vectors, through the caches, at any address.
struct Whole {
  template <class D, typename T>
  HWY_INLINE hn::Vec<D> Load(D d, const T* from) const {
    return hn::LoadU(d, from);
  }
  template <class D, typename T>
  HWY_INLINE void Store(hn::Vec<D> values, D d, T* to) const {
    hn::StoreU(values, d, to);
  }
};

/// Stores of 16 bytes or more past the caches, to an address aligned to the stored vector.
struct Streamed {
  template <class D, typename T>
  HWY_INLINE void Store(hn::Vec<D> values, D d, T* to) const {
    hn::Stream(values, d, to);
  }
};

/// Loads and stores of the first `count` lanes; other lanes load as zero. Needs kHasMaskedAccess.
struct Masked {
  size_t count;

  template <class D, typename T>
  HWY_INLINE hn::Vec<D> Load(D d, const T* from) const {
    return hn::MaskedLoad(hn::FirstN(d, count), d, from);
  }
  template <class D, typename T>
  HWY_INLINE void Store(hn::Vec<D> values, D d, T* to) const {
    hn::BlendedStore(values, hn::FirstN(d, count), d, to);
  }
};

// Masked accesses of 16-bit elements that touch no byte of a masked lane.
#if HWY_TARGET == HWY_AVX3
inline constexpr bool kHasMaskedAccess = true;
#else
inline constexpr bool kHasMaskedAccess = false;
#endif

template <class Mode, class D>
HWY_INLINE hn::Vec<D> LoadFloats(Mode mode, D d, const float* from) {
  return mode.Load(d, from);
}

template <class Mode, class D>
HWY_INLINE hn::Vec<D> LoadFloats(Mode mode, D d, const BFloat16* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = mode.Load(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class Mode, class D>
HWY_INLINE hn::Vec<D> LoadFloats(Mode mode, D d, const Half* from) {
  if constexpr (kHasF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    const hn::Rebind<uint16_t, D> u16;
    const auto bits = mode.Load(u16, reinterpret_cast<const uint16_t*>(from));
    return hn::PromoteTo(d, hn::BitCast(d16, bits));
  } else {
    HWY_ALIGN float floats[hn::MaxLanes(d)];
    for (size_t i = 0; i < hn::Lanes(d); ++i) {
      floats[i] = ToFloat(from[i]);
    }
    return hn::Load(d, floats);
  }
}

template <class Mode, class D>
HWY_INLINE void StoreFloats(Mode mode, D d, hn::Vec<D> values, float* to) {
  mode.Store(values, d, to);
}

template <class Mode, class D>
HWY_INLINE void StoreFloats(Mode mode, D d, hn::Vec<D> values, BFloat16* to) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const hn::Rebind<int32_t, D> s32;
  const auto bits = hn::BitCast(d32, values);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF))));
  const auto quiet = hn::Or(high, hn::Set(d32, 0x40));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(values));
  const auto result = hn::IfThenElse(is_nan, quiet, rounded);
  mode.Store(hn::DemoteTo(d16, hn::BitCast(s32, result)), d16, reinterpret_cast<uint16_t*>(to));
}

template <class Mode, class D>
HWY_INLINE void StoreFloats(Mode mode, D d, hn::Vec<D> values, Half* to) {
  if constexpr (kHasF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    const hn::Rebind<uint16_t, D> u16;
    mode.Store(hn::BitCast(u16, hn::DemoteTo(d16, values)), u16, reinterpret_cast<uint16_t*>(to));
  } else {
    HWY_ALIGN float floats[hn::MaxLanes(d)];
    hn::Store(values, d, floats);
    for (size_t i = 0; i < hn::Lanes(d); ++i) {
      to[i] = ToHalf(floats[i]);
    }
  }
}

template <class Mode, typename T>
HWY_INLINE DoubleVector LoadVector(Mode mode, const T* from) {
  return hn::PromoteTo(DoubleTag(), LoadFloats(mode, HalfFloatTag(), from));
}
template <class Mode>
HWY_INLINE DoubleVector LoadVector(Mode mode, const double* from) {
  return mode.Load(DoubleTag(), from);
}

template <class Mode, typename T>
HWY_INLINE void StoreVector(Mode mode, DoubleVector values, T* to) {
  const HalfFloatTag d;
  StoreFloats(mode, d, hn::DemoteTo(d, values), to);
}
template <class Mode>
HWY_INLINE void StoreVector(Mode mode, DoubleVector values, double* to) {
  mode.Store(values, DoubleTag(), to);
}

/// Rounds each lane to T and back.
template <typename T>
HWY_INLINE DoubleVector RoundTo(DoubleVector values) {
  T rounded[hn::MaxLanes(DoubleTag())];
  StoreVector(Whole(), values, rounded);
  return LoadVector(Whole(), rounded);
}
template <>
HWY_INLINE DoubleVector RoundTo<double>(DoubleVector values) {
  return values;
}
template <>
HWY_INLINE DoubleVector RoundTo<float>(DoubleVector values) {
  return hn::PromoteTo(DoubleTag(), hn::DemoteTo(HalfFloatTag(), values));
}

/// Access to all lanes at an address.
struct FullVector {
  template <typename T>
  HWY_INLINE DoubleVector Load(const T* from) const {
    return LoadVector(Whole(), from);
  }
  template <typename T>
  HWY_INLINE void Store(DoubleVector values, T* to) const {
    StoreVector(Whole(), values, to);
  }
  template <typename T>
  HWY_INLINE FloatVector LoadF32(const T* from) const {
    return LoadFloats(Whole(), FloatTag(), from);
  }
  /// Zeroes the lanes that hold no element.
  HWY_INLINE DoubleVector Mask(DoubleVector values) const { return values; }
};

/// Rounds each lane to T and back.
template <typename T>
HWY_INLINE FloatVector RoundFloatsTo(FloatVector values) {
  T rounded[hn::MaxLanes(FloatTag())];
  StoreFloats(Whole(), FloatTag(), values, rounded);
  return LoadFloats(Whole(), FloatTag(), rounded);
}
template <>
HWY_INLINE FloatVector RoundFloatsTo<float>(FloatVector values) {
  return values;
}

/// Access to the first `count` elements only; other lanes load as zero and are not stored.
struct PartialVector {
  int64_t count;

  template <typename T>
  HWY_INLINE DoubleVector Load(const T* from) const {
    if constexpr (kHasMaskedAccess) {
      return LoadVector(Masked{static_cast<size_t>(count)}, from);
    } else {
      T padded[hn::MaxLanes(DoubleTag())] = {};
      std::copy_n(from, count, padded);
      return LoadVector(Whole(), padded);
    }
  }
  template <typename T>
  HWY_INLINE void Store(DoubleVector values, T* to) const {
    if constexpr (kHasMaskedAccess) {
      StoreVector(Masked{static_cast<size_t>(count)}, values, to);
    } else {
      T padded[hn::MaxLanes(DoubleTag())];
      StoreVector(Whole(), values, padded);
      std::copy_n(padded, count, to);
    }
  }
  template <typename T>
  HWY_INLINE FloatVector LoadF32(const T* from) const {
    if constexpr (kHasMaskedAccess) {
      return LoadFloats(Masked{static_cast<size_t>(count)}, FloatTag(), from);
    } else {
      T padded[hn::MaxLanes(FloatTag())] = {};
      std::copy_n(from, count, padded);
      return LoadFloats(Whole(), FloatTag(), padded);
    }
  }
  template <typename T>
  HWY_INLINE void StoreF32(FloatVector values, T* to) const {
    if constexpr (kHasMaskedAccess) {
      StoreFloats(Masked{static_cast<size_t>(count)}, FloatTag(), values, to);
    } else {
      T padded[hn::MaxLanes(FloatTag())];
      StoreFloats(Whole(), FloatTag(), values, padded);
      std::copy_n(padded, count, to);
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
