// Row norms on the CPU, forward. Per row: the residual sum where there is one, one reduction from
// memory, one pass from cache that writes y. Rows are tasks; a row's arithmetic depends on
// hidden_size only.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "row_norm/row_norm_cpu_forward.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // before highway.h: compiles this file once per target
#include "hwy/highway.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cpu/dtype_visitor.h"
#include "cpu/moments-inl.h"
#include "cpu/parallel_tasks.h"
#include "cpu/vector_access-inl.h"
#include "row_norm/row_norm_cpu.h"

#ifndef NORM_ROW_NORM_CPU_FORWARD_ONCE
#define NORM_ROW_NORM_CPU_FORWARD_ONCE
namespace norm::internal {

/// Whether y goes through the caches. Outputs past kMinStreamedBytes would only push other data out
/// of them, and a cached store first reads the line it overwrites.
enum class StorePolicy { kCache, kStream };
inline constexpr int64_t kMinStreamedBytes = 8 << 20;
inline constexpr int64_t kMinStreamedRowBytes =
    4 << 10;  // below, the lines at a row's ends weigh too much
inline constexpr int64_t kCacheLineBytes = 64;

/// Rows up to this length are computed side by side, one per lane.
inline constexpr int64_t kMaxTinyHidden = 16;

}  // namespace norm::internal
#endif  // NORM_ROW_NORM_CPU_FORWARD_ONCE

HWY_BEFORE_NAMESPACE();
namespace norm::internal::HWY_NAMESPACE {

// Vectors of 16-bit elements are then at least 16 bytes.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
inline constexpr bool kCanStream = true;
#else
inline constexpr bool kCanStream = false;
#endif

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

/// y of one row in f64: for f64 tensors, and for rows whose statistics f32 cannot hold.
template <typename T, typename W>
void WriteRowF64(const RowNormForwardArgs& args, const RowStatistics& statistics, const T* s,
                 T* y) {
  const W* weight = static_cast<const W*>(args.weight);
  const W* bias = static_cast<const W*>(args.bias);
  const bool subtract_mean = args.kind == RowNormKind::kLayer;
  const bool round_normalized = args.rounding == Rounding::kNormalizedFirst;
  const DoubleTag d;
  const DoubleVector mean = hn::Set(d, statistics.mean);
  const DoubleVector mean_low = hn::Set(d, statistics.mean_low);
  const DoubleVector rstd = hn::Set(d, statistics.rstd);
  const DoubleVector offset = hn::Set(d, args.weight_offset);
  ForEachVector(args.hidden_size, [&](auto access, int64_t i) HWY_ATTR {
    DoubleVector v = access.Load(s + i);
    if (subtract_mean) {
      v = hn::Sub(hn::Sub(v, mean), mean_low);
    }
    v = hn::Mul(v, rstd);
    if (round_normalized) {
      v = RoundTo<T>(v);
    }
    if (weight != nullptr) {
      v = hn::Mul(v, hn::Add(access.Load(weight + i), offset));
    }
    if (subtract_mean) {
      // An absent bias adds zero: bit-equal to a bias of zeros, the sign of a zero included.
      v = hn::Add(v, bias != nullptr ? access.Load(bias + i) : hn::Zero(d));
    }
    access.Store(v, y + i);
  });
}

/// The f32 computation of y, one vector at a time.
template <typename T, typename W>
class RowFormula {
 public:
  RowFormula(const RowNormForwardArgs& args, const RowStatistics& statistics)
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

template <typename T, typename W, class Mode>
void WriteRowF32(const RowNormForwardArgs& args, const RowStatistics& statistics, const T* s, T* y,
                 Mode mode) {
  const RowFormula<T, W> formula(args, statistics);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(FloatTag()));
  const int64_t count = args.hidden_size;
  int64_t i = 0;
  if constexpr (std::is_same_v<Mode, Streamed>) {
    // Only whole cache lines are streamed: a line that is also stored to through the caches costs
    // several times as much.
    constexpr int64_t kLine = kCacheLineBytes / static_cast<int64_t>(sizeof(T));
    const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(y) % kCacheLineBytes) /
                         static_cast<int64_t>(sizeof(T));
    const int64_t head = past == 0 ? 0 : std::min(count, kLine - past);
    for (; i < head; i += lanes) {
      const PartialVector access{std::min(lanes, head - i)};
      access.StoreF32(formula.At(access, s, i), y + i);
    }
    i = head;
    for (const int64_t end = head + (count - head) / kLine * kLine; i < end; i += lanes) {
      StoreFloats(mode, FloatTag(), formula.At(FullVector(), s, i), y + i);
    }
  }
  for (; i + lanes <= count; i += lanes) {
    StoreFloats(Whole(), FloatTag(), formula.At(FullVector(), s, i), y + i);
  }
  if (i < count) {
    const PartialVector tail{count - i};
    tail.StoreF32(formula.At(tail, s, i), y + i);
  }
}

/// Whether f32 holds the statistics and every deviation that they allow.
bool FitsF32(const RowStatistics& statistics) {
  return statistics.rstd > 1e-30 && statistics.rstd < 1e30 && std::fabs(statistics.mean) < 1e37;
}

template <typename T, typename W>
void WriteRow(const RowNormForwardArgs& args, const RowStatistics& statistics, StorePolicy policy,
              const T* s, T* y) {
  if constexpr (std::is_same_v<T, double>) {
    WriteRowF64<T, W>(args, statistics, s, y);
  } else if (!FitsF32(statistics)) {
    WriteRowF64<T, W>(args, statistics, s, y);
  } else if (kCanStream && policy == StorePolicy::kStream) {
    using Mode = std::conditional_t<kCanStream, Streamed, Whole>;
    WriteRowF32<T, W>(args, statistics, s, y, Mode());
  } else {
    WriteRowF32<T, W>(args, statistics, s, y, Whole());
  }
}

/// Rows too short for vectors along them: one lane per row, in f64.
template <typename T, typename W>
class TinyRows {
 public:
  explicit TinyRows(const RowNormForwardArgs& args)
      : args_(args), has_weight_(args.weight != nullptr) {
    for (int64_t lane = 0; lane < Lanes(); ++lane) {
      offsets_[lane] = lane * args.hidden_size;
    }
    for (int64_t column = 0; column < args.hidden_size; ++column) {
      weight_[column] =
          has_weight_ ? ToDouble(static_cast<const W*>(args.weight)[column]) + args.weight_offset
                      : 1.0;
      bias_[column] =
          args.bias != nullptr ? ToDouble(static_cast<const W*>(args.bias)[column]) : 0.0;
    }
  }

  /// Normalizes rows [row, row + rows), at most one per lane. A row's lane does not enter its
  /// result.
  void Run(int64_t row, int64_t rows) {
    const DoubleTag d;
    const int64_t hidden_size = args_.hidden_size;
    const int64_t count = rows * hidden_size;
    const T* s = static_cast<const T*>(args_.x) + row * hidden_size;
    if (args_.residual != nullptr) {
      T* sum = static_cast<T*>(args_.residual_sum) + row * hidden_size;
      AddRows(s, static_cast<const T*>(args_.residual) + row * hidden_size, sum, count);
      s = sum;
    }
    ForEachVector(count, [&](auto access, int64_t i)
                             HWY_ATTR { hn::StoreU(access.Load(s + i), d, flat_ + i); });

    const auto offsets = hn::Load(hn::RebindToSigned<DoubleTag>(), offsets_);
    const DoubleVector divisor = hn::Set(d, static_cast<double>(hidden_size));
    DoubleVector mean = hn::Zero(d);
    DoubleVector left = hn::Zero(d);
    DoubleVector squares = hn::Zero(d);
    if (args_.kind == RowNormKind::kLayer) {
      for (int64_t column = 0; column < hidden_size; ++column) {
        mean = hn::Add(mean, hn::GatherIndex(d, flat_ + column, offsets));
      }
      mean = hn::Div(mean, divisor);
    }
    for (int64_t column = 0; column < hidden_size; ++column) {
      const DoubleVector deviation = hn::Sub(hn::GatherIndex(d, flat_ + column, offsets), mean);
      left = hn::Add(left, deviation);
      squares = hn::MulAdd(deviation, deviation, squares);
    }
    DoubleVector mean_low = hn::Zero(d);
    if (args_.kind == RowNormKind::kLayer) {
      mean_low = hn::Div(left, divisor);
      // Not a number stays one: Max would return the zero.
      const DoubleVector corrected = hn::NegMulAdd(left, mean_low, squares);
      squares = hn::IfThenElse(hn::Lt(corrected, hn::Zero(d)), hn::Zero(d), corrected);
    }
    const DoubleVector variance = hn::Add(hn::Div(squares, divisor), hn::Set(d, args_.eps));
    const DoubleVector rstd = hn::Div(hn::Set(d, 1.0), hn::Sqrt(variance));

    for (int64_t column = 0; column < hidden_size; ++column) {
      const DoubleVector value = hn::GatherIndex(d, flat_ + column, offsets);
      DoubleVector v = hn::Mul(hn::Sub(hn::Sub(value, mean), mean_low), rstd);
      if (args_.rounding == Rounding::kNormalizedFirst) {
        v = RoundTo<T>(v);
      }
      v = hn::Mul(v, hn::Set(d, weight_[column]));
      if (args_.kind == RowNormKind::kLayer) {
        v = hn::Add(v, hn::Set(d, bias_[column]));
      }
      hn::ScatterIndex(v, d, flat_ + column, offsets);
    }
    T* y = static_cast<T*>(args_.y) + row * hidden_size;
    ForEachVector(count, [&](auto access, int64_t i)
                             HWY_ATTR { access.Store(hn::LoadU(d, flat_ + i), y + i); });
    StoreStatistic(hn::Add(mean, mean_low), row, rows, args_.mean);
    StoreStatistic(rstd, row, rows, args_.rstd);
  }

 private:
  static void StoreStatistic(DoubleVector values, int64_t row, int64_t rows, void* to) {
    if (to != nullptr) {
      PartialVector{rows}.Store(values, static_cast<StatisticsOf<T>*>(to) + row);
    }
  }

  static constexpr size_t kMaxLanes = hn::MaxLanes(DoubleTag());

  const RowNormForwardArgs& args_;
  bool has_weight_;
  HWY_ALIGN double flat_[(kMaxTinyHidden + 1) * kMaxLanes] = {};
  HWY_ALIGN int64_t offsets_[kMaxLanes] = {};
  double weight_[kMaxTinyHidden] = {};
  double bias_[kMaxTinyHidden] = {};
};

template <typename T, typename W>
void ForwardRows(const RowNormForwardArgs& args, StorePolicy policy, int64_t begin, int64_t end) {
  if (args.hidden_size <= kMaxTinyHidden) {
    TinyRows<T, W> tiny(args);
    for (int64_t row = begin; row < end; row += Lanes()) {
      tiny.Run(row, std::min(Lanes(), end - row));
    }
    return;
  }
  const T* x = static_cast<const T*>(args.x);
  const T* residual = static_cast<const T*>(args.residual);
  T* residual_sum = static_cast<T*>(args.residual_sum);
  T* y = static_cast<T*>(args.y);
  auto* mean = static_cast<StatisticsOf<T>*>(args.mean);
  auto* rstd = static_cast<StatisticsOf<T>*>(args.rstd);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t offset = row * args.hidden_size;
    const T* s = x + offset;
    if (residual != nullptr) {
      AddRows(s, residual + offset, residual_sum + offset, args.hidden_size);
      s = residual_sum + offset;
    }
    const RowStatistics statistics = ReduceRow(args, s);
    if (mean != nullptr) {
      Assign(mean[row], statistics.mean + statistics.mean_low);
    }
    if (rstd != nullptr) {
      Assign(rstd[row], statistics.rstd);
    }
    WriteRow<T, W>(args, statistics, policy, s, y + offset);
  }
  if (policy == StorePolicy::kStream) {
    hwy::FlushStream();
  }
}

void RowNormForwardRows(const RowNormForwardArgs& args, StorePolicy policy, int64_t begin,
                        int64_t end) {
  VisitDTypePair(args.dtype, args.weight_dtype, [&](auto x_tag, auto weight_tag) {
    ForwardRows<typename decltype(x_tag)::Type, typename decltype(weight_tag)::Type>(args, policy,
                                                                                     begin, end);
  });
}

}  // namespace norm::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace norm::internal {

HWY_EXPORT(RowNormForwardRows);

Status RowNormForwardCpu(const RowNormForwardArgs& args, ThreadPool& threads) {
  NORM_RETURN_IF_ERROR(Validate(args));
  const int64_t rows_per_task =
      args.hidden_size < kTaskElements ? kTaskElements / args.hidden_size : 1;
  const int64_t tasks = CeilDiv(args.rows, rows_per_task);
  const int64_t bytes = args.rows * args.hidden_size * static_cast<int64_t>(DTypeSize(args.dtype));
  const int64_t row_bytes = args.hidden_size * static_cast<int64_t>(DTypeSize(args.dtype));
  const StorePolicy policy = bytes >= kMinStreamedBytes && row_bytes >= kMinStreamedRowBytes
                                 ? StorePolicy::kStream
                                 : StorePolicy::kCache;
  RunTasks(threads, bytes, tasks, [&](int64_t task) {
    const int64_t begin = task * rows_per_task;
    HWY_DYNAMIC_DISPATCH(RowNormForwardRows)
    (args, policy, begin, std::min(args.rows, begin + rows_per_task));
  });
  return Status();
}

}  // namespace norm::internal
#endif  // HWY_ONCE
