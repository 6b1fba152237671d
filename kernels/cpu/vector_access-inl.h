// Whole and partial vectors over contiguous elements, and loops over them, for one Highway target
// per inclusion.
#if defined(NORM_CPU_VECTOR_ACCESS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORM_CPU_VECTOR_ACCESS_INL_H_
#undef NORM_CPU_VECTOR_ACCESS_INL_H_
#else
#define NORM_CPU_VECTOR_ACCESS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/element_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace norm::internal::HWY_NAMESPACE {

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
