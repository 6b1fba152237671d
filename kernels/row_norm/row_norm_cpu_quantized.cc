// Row norms on the CPU, forward, with y in one byte per element. Per row: statistics as for any
// other output, one pass that finds the largest |y| where the format scales by row, one pass that
// computes y again and quantizes it. y itself is never stored.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "row_norm/row_norm_cpu_quantized.cc"
#include "hwy/foreach_target.h"  // before highway.h: compiles this file once per target
#include "hwy/highway.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "cpu/dtype_visitor.h"
#include "cpu/vector_access-inl.h"
#include "row_norm/row_norm_cpu.h"
#include "row_norm/row_norm_cpu_forward-inl.h"

#ifndef NORM_ROW_NORM_CPU_QUANTIZED_ONCE
#define NORM_ROW_NORM_CPU_QUANTIZED_ONCE
namespace norm::internal {

inline constexpr float kLargestF8 = 448.0f;
inline constexpr float kLargestInt8 = 127.0f;

/// What a row is divided by, and the factor that does it.
struct QuantizationScale {
  float scale;
  float inverse;
};

/// The scale that takes `largest_y` to `largest_quantized`.
inline QuantizationScale ScaleOfRow(float largest_y, float largest_quantized) {
  if (!std::isfinite(largest_y)) {
    return {largest_y, std::numeric_limits<float>::quiet_NaN()};
  }
  const float scale = largest_y / largest_quantized;
  // The reciprocal of a subnormal number may overflow.
  if (scale < std::numeric_limits<float>::min()) {
    return {0.0f, 0.0f};
  }
  return {scale, 1.0f / scale};
}

}  // namespace norm::internal
#endif  // NORM_ROW_NORM_CPU_QUANTIZED_ONCE

HWY_BEFORE_NAMESPACE();
namespace norm::internal::HWY_NAMESPACE {

using ByteTag = hn::Rebind<uint8_t, FloatTag>;
using SignedByteTag = hn::Rebind<int8_t, FloatTag>;
using BitsTag = hn::Rebind<uint32_t, FloatTag>;
using IntTag = hn::Rebind<int32_t, FloatTag>;

/// Values of y held at a time: a whole number of vectors.
inline constexpr int64_t kBlockElements = 1024;

/// E4M3 to the nearest, ties to even; saturated; NaN is 0x7F.
struct ToF8 {
  static constexpr float kLargest = kLargestF8;

  HWY_INLINE void operator()(FloatVector v, uint8_t* to) const {
    const FloatTag d;
    const BitsTag u;
    const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(u, v)), hn::Set(u, 0x80));
    const FloatVector magnitude = hn::Min(hn::Abs(v), hn::Set(d, kLargest));
    // From the smallest normal value on: the f32 pattern rounded to 3 fraction bits, the exponent
    // bias changed from 127 to 7.
    const auto bits = hn::BitCast(u, magnitude);
    const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(u, 1));
    const auto rounded = hn::ShiftRight<20>(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7FFFF))));
    const auto normal = hn::Sub(rounded, hn::Set(u, (127 - 7) << 3));
    // Below it: adding 2^14 leaves units of 2^-9 in the low bits, rounded by the addition.
    const FloatVector shift = hn::Set(d, 0x1p14f);
    const auto subnormal =
        hn::Sub(hn::BitCast(u, hn::Add(magnitude, shift)), hn::BitCast(u, shift));
    const auto is_subnormal = hn::RebindMask(u, hn::Lt(magnitude, hn::Set(d, 0x1p-6f)));
    const auto number = hn::Or(sign, hn::IfThenElse(is_subnormal, subnormal, normal));
    const auto is_nan = hn::RebindMask(u, hn::IsNaN(v));
    const auto result = hn::IfThenElse(is_nan, hn::Set(u, 0x7F), number);
    hn::StoreU(hn::DemoteTo(ByteTag(), hn::BitCast(IntTag(), result)), ByteTag(), to);
  }
};

/// int8 to the nearest, ties to even, in [-127, 127]; NaN is 0.
struct ToInt8 {
  static constexpr float kLargest = kLargestInt8;

  HWY_INLINE void operator()(FloatVector v, uint8_t* to) const {
    const FloatTag d;
    const FloatVector number = hn::IfThenZeroElse(hn::IsNaN(v), v);
    const FloatVector clamped =
        hn::Min(hn::Max(number, hn::Set(d, -kLargest)), hn::Set(d, kLargest));
    const auto bytes = hn::DemoteTo(SignedByteTag(), hn::NearestInt(clamped));
    hn::StoreU(hn::BitCast(ByteTag(), bytes), ByteTag(), to);
  }
};

/// y of one row in f32, block by block: calls visit(y, first, count) with y aligned, and zero past
/// count up to the next whole vector.
template <typename T, typename W, typename Visit>
void ForEachBlock(const RowNormForwardArgs& args, const RowStatistics& statistics, const T* s,
                  const Visit& visit) {
  HWY_ALIGN float y[kBlockElements];
  const bool fits = FitsF32(statistics);
  const RowFormulaF32<T, W> formula(args, statistics);
  const RowFormulaF64<T, W> formula_f64(args, statistics);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(FloatTag()));
  for (int64_t first = 0; first < args.hidden_size; first += kBlockElements) {
    const int64_t count = std::min(kBlockElements, args.hidden_size - first);
    std::fill(y + count / lanes * lanes, y + (count + lanes - 1) / lanes * lanes, 0.0f);
    if (fits) {
      int64_t i = 0;
      for (; i + lanes <= count; i += lanes) {
        hn::Store(formula.At(FullVector(), s, first + i), FloatTag(), y + i);
      }
      if (i < count) {
        const PartialVector tail{count - i};
        tail.StoreF32(formula.At(tail, s, first + i), y + i);
      }
    } else {
      ForEachVector(count, [&](auto access, int64_t i) HWY_ATTR {
        access.Store(formula_f64.At(access, s, first + i), y + i);
      });
    }
    visit(y, first, count);
  }
}

/// The largest |y| of a row; NaN if there is one.
template <typename T, typename W>
float LargestOfRow(const RowNormForwardArgs& args, const PreparedRow<T>& row) {
  const IntTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto largest = hn::Zero(d);
  ForEachBlock<T, W>(args, row.statistics, row.s,
                     [&](const float* y, int64_t, int64_t count) HWY_ATTR {
                       for (int64_t i = 0; i < count; i += lanes) {
                         // As bits, magnitudes are ordered like integers, with infinity and NaN above all others.
                         const auto magnitude = hn::Abs(hn::Load(FloatTag(), y + i));
                         largest = hn::Max(largest, hn::BitCast(d, magnitude));
                       }
                     });
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

template <typename T, typename W, class Quantize>
void QuantizeRow(const RowNormForwardArgs& args, const PreparedRow<T>& row, float inverse_scale,
                 uint8_t* to, const Quantize& quantize) {
  HWY_ALIGN uint8_t bytes[kBlockElements];
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const FloatVector inverse = hn::Set(d, inverse_scale);
  ForEachBlock<T, W>(args, row.statistics, row.s,
                     [&](const float* y, int64_t first, int64_t count) HWY_ATTR {
                       for (int64_t i = 0; i < count; i += lanes) {
                         quantize(hn::Mul(hn::Load(d, y + i), inverse), bytes + i);
                       }
                       std::copy_n(bytes, count, to + first);
                     });
}

template <typename T, typename W, class Quantize>
void QuantizeRows(const RowNormForwardArgs& args, int64_t begin, int64_t end,
                  const Quantize& quantize) {
  auto* y = static_cast<uint8_t*>(args.y);
  for (int64_t index = begin; index < end; ++index) {
    const PreparedRow<T> row(args, index);
    float inverse = 1.0f / args.y_scale;
    if (HasRowScale(args.output_format)) {
      const QuantizationScale scale = ScaleOfRow(LargestOfRow<T, W>(args, row), Quantize::kLargest);
      static_cast<float*>(args.row_scale)[index] = scale.scale;
      inverse = scale.inverse;
    }
    QuantizeRow<T, W>(args, row, inverse, y + index * args.hidden_size, quantize);
  }
}

void RowNormQuantizedRows(const RowNormForwardArgs& args, int64_t begin, int64_t end) {
  VisitDTypePair(args.dtype, args.weight_dtype, [&](auto x_tag, auto weight_tag) {
    using T = typename decltype(x_tag)::Type;
    using W = typename decltype(weight_tag)::Type;
    if constexpr (!std::is_same_v<T, double>) {  // Validate refuses f64
      if (args.output_format == OutputFormat::kInt8PerRow) {
        QuantizeRows<T, W>(args, begin, end, ToInt8());
      } else {
        QuantizeRows<T, W>(args, begin, end, ToF8());
      }
    }
  });
}

}  // namespace norm::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace norm::internal {

HWY_EXPORT(RowNormQuantizedRows);

void RowNormQuantizedRowsCpu(const RowNormForwardArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(RowNormQuantizedRows)(args, begin, end);
}

}  // namespace norm::internal
#endif  // HWY_ONCE
