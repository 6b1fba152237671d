// What every output format of row norms on the CPU starts from: the residual sum, a row's
// statistics and the formula of y, for one Highway target per inclusion.
#if defined(NORM_ROW_NORM_CPU_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORM_ROW_NORM_CPU_FORWARD_INL_H_
#undef NORM_ROW_NORM_CPU_FORWARD_INL_H_
#else
#define NORM_ROW_NORM_CPU_FORWARD_INL_H_
#endif

#include <cmath>

#include "cpu/dtype_visitor.h"
#include "cpu/moments-inl.h"
#include "cpu/vector_access-inl.h"
#include "row_norm/row_norm.h"

HWY_BEFORE_NAMESPACE();
namespace norm::internal::HWY_NAMESPACE {

struct RowStatistics {
  double mean;
  double mean_low;
  double rstd;
};

template <typename T>
void AddRows(const T* x, const T* residual, T* sum, int64_t hidden_size) {
  ForEachVector(hidden_size, [&](auto access, int64_t i) HWY_ATTR {
    access.Store(hn::Add(access.Load(x + i), access.Load(residual + i)), sum + i);
  });
}

template <typename T>
RowStatistics ReduceRow(const RowNormForwardArgs& args, const T* s) {
  const double count = static_cast<double>(args.hidden_size);
  if (args.kind == RowNormKind::kRms) {
    return {0.0, 0.0, 1.0 / std::sqrt(SumOfSquares(s, args.hidden_size) / count + args.eps)};
  }
  const Moments moments = ContiguousMoments(s, args.hidden_size);
  return {moments.mean, moments.mean_low, 1.0 / std::sqrt(moments.m2 / count + args.eps)};
}

/// Whether f32 holds the statistics and every deviation that they allow.
inline bool FitsF32(const RowStatistics& statistics) {
  return statistics.rstd > 1e-30 && statistics.rstd < 1e30 && std::fabs(statistics.mean) < 1e37;
}

/// Statistics of row `row`, whose sum with the residual is written first where there is one, and
/// what y is computed from.
template <typename T>
struct PreparedRow {
  PreparedRow(const RowNormForwardArgs& args, int64_t row)
      : s(static_cast<const T*>(args.x) + row * args.hidden_size), statistics(Prepare(args, row)) {}

  const T* s;
  RowStatistics statistics;

 private:
  RowStatistics Prepare(const RowNormForwardArgs& args, int64_t row) {
    if (args.residual != nullptr) {
      const int64_t offset = row * args.hidden_size;
      T* sum = static_cast<T*>(args.residual_sum) + offset;
      AddRows(s, static_cast<const T*>(args.residual) + offset, sum, args.hidden_size);
      s = sum;
    }
    const RowStatistics computed = ReduceRow(args, s);
    if (args.mean != nullptr) {
      Assign(static_cast<StatisticsOf<T>*>(args.mean)[row], computed.mean + computed.mean_low);
    }
    if (args.rstd != nullptr) {
      Assign(static_cast<StatisticsOf<T>*>(args.rstd)[row], computed.rstd);
    }
    return computed;
  }
};

/// The f64 computation of y, one vector at a time: for f64 tensors, and for rows whose statistics
/// f32 cannot hold.
template <typename T, typename W>
class RowFormulaF64 {
 public:
  RowFormulaF64(const RowNormForwardArgs& args, const RowStatistics& statistics)
      : weight_(static_cast<const W*>(args.weight)),
        bias_(static_cast<const W*>(args.bias)),
        subtract_mean_(args.kind == RowNormKind::kLayer),
        round_normalized_(args.rounding == Rounding::kNormalizedFirst),
        statistics_(statistics),
        offset_(args.weight_offset) {}

  template <class Access>
  HWY_INLINE DoubleVector At(Access access, const T* s, int64_t i) const {
    const DoubleTag d;
    DoubleVector v = access.Load(s + i);
    if (subtract_mean_) {
      v = hn::Sub(hn::Sub(v, hn::Set(d, statistics_.mean)), hn::Set(d, statistics_.mean_low));
    }
    v = hn::Mul(v, hn::Set(d, statistics_.rstd));
    if (round_normalized_) {
      v = RoundTo<T>(v);
    }
    if (weight_ != nullptr) {
      v = hn::Mul(v, hn::Add(access.Load(weight_ + i), hn::Set(d, offset_)));
    }
    if (subtract_mean_) {
      // An absent bias adds zero: bit-equal to a bias of zeros, the sign of a zero included.
      v = hn::Add(v, bias_ != nullptr ? access.Load(bias_ + i) : hn::Zero(d));
    }
    return v;
  }

 private:
  const W* weight_;
  const W* bias_;
  bool subtract_mean_;
  bool round_normalized_;
  RowStatistics statistics_;
  double offset_;
};

/// The f32 computation of y, one vector at a time.
template <typename T, typename W>
class RowFormulaF32 {
 public:
  RowFormulaF32(const RowNormForwardArgs& args, const RowStatistics& statistics)
      : weight_(static_cast<const W*>(args.weight)),
        bias_(static_cast<const W*>(args.bias)),
        subtract_mean_(args.kind == RowNormKind::kLayer),
        round_normalized_(args.rounding == Rounding::kNormalizedFirst),
        mean_(static_cast<float>(statistics.mean)),
        mean_low_(static_cast<float>((statistics.mean - mean_) + statistics.mean_low)),
        rstd_(static_cast<float>(statistics.rstd)),
        offset_(static_cast<float>(args.weight_offset)) {}

  template <class Access>
  HWY_INLINE FloatVector At(Access access, const T* s, int64_t i) const {
    const FloatTag d;
    FloatVector v = access.LoadF32(s + i);
    if (subtract_mean_) {
      v = hn::Sub(hn::Sub(v, hn::Set(d, mean_)), hn::Set(d, mean_low_));
    }
    v = hn::Mul(v, hn::Set(d, rstd_));
    if (round_normalized_) {
      v = RoundFloatsTo<T>(v);
    }
    FloatVector weight = hn::Set(d, 1.0f);
    if (weight_ != nullptr) {
      weight = hn::Add(access.LoadF32(weight_ + i), hn::Set(d, offset_));
    }
    if (!subtract_mean_) {
      return hn::Mul(v, weight);
    }
    // An absent bias adds zero: bit-equal to a bias of zeros, the sign of a zero included.
    return hn::MulAdd(v, weight, bias_ != nullptr ? access.LoadF32(bias_ + i) : hn::Zero(d));
  }

 private:
  const W* weight_;
  const W* bias_;
  bool subtract_mean_;
  bool round_normalized_;
  float mean_;
  float mean_low_;
  float rstd_;
  float offset_;
};

}  // namespace norm::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
