// Vectorized reductions over contiguous values, for one Highway target per inclusion.
#if defined(NORM_CPU_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORM_CPU_MOMENTS_INL_H_
#undef NORM_CPU_MOMENTS_INL_H_
#else
#define NORM_CPU_MOMENTS_INL_H_
#endif

#include <algorithm>

#include "cpu/moments.h"
#include "cpu/vector_access-inl.h"

HWY_BEFORE_NAMESPACE();
namespace norm::internal::HWY_NAMESPACE {

/// Values read twice while they are in the first-level cache.
inline constexpr int64_t kMomentsBlock = 2048;

template <typename T>
double SumOfSquares(const T* x, int64_t count) {
  Accumulators squares;
  ForEachVectorUnrolled(count, [&](auto access, int64_t i, auto k) HWY_ATTR {
    const DoubleVector v = access.Load(x + i);
    squares.At(k) = hn::MulAdd(v, v, squares.At(k));
  });
  return squares.Sum();
}

/// Moments of one block: the mean, then squared deviations from it, corrected by what the rounding
/// of the mean left.
template <typename T>
Moments BlockMoments(const T* x, int64_t count) {
  Accumulators sum;
  ForEachVectorUnrolled(count, [&](auto access, int64_t i, auto k) HWY_ATTR {
    sum.At(k) = hn::Add(sum.At(k), access.Load(x + i));
  });
  Moments block;
  block.count = static_cast<double>(count);
  block.mean = sum.Sum() / block.count;
  const DoubleVector mean = hn::Set(DoubleTag(), block.mean);
  Accumulators deviations;
  Accumulators squares;
  ForEachVectorUnrolled(count, [&](auto access, int64_t i, auto k) HWY_ATTR {
    const DoubleVector deviation = access.Mask(hn::Sub(access.Load(x + i), mean));
    deviations.At(k) = hn::Add(deviations.At(k), deviation);
    squares.At(k) = hn::MulAdd(deviation, deviation, squares.At(k));
  });
  const double left = deviations.Sum();
  block.mean_low = left / block.count;
  block.m2 = std::max(squares.Sum() - left * block.mean_low, 0.0);
  return block;
}

/// Moments of `count` values, read from memory once.
template <typename T>
Moments ContiguousMoments(const T* x, int64_t count) {
  Moments total;
  for (int64_t begin = 0; begin < count; begin += kMomentsBlock) {
    total = Merge(total, BlockMoments(x + begin, std::min(kMomentsBlock, count - begin)));
  }
  return total;
}

}  // namespace norm::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
