// Row norms on the CPU, forward. Per row: the residual sum where there is one, one reduction from
// memory, one pass from cache that writes y. Rows are tasks; a row's arithmetic depends on
// hidden_size only.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "row_norm/row_norm_cpu_forward.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // before highway.h: compiles this file once per target
#include "hwy/highway.h"

#include <algorithm>
#include <type_traits>

#include "cpu/dtype_visitor.h"
#include "cpu/parallel_tasks.h"
#include "cpu/vector_access-inl.h"
#include "row_norm/row_norm_cpu.h"
#include "row_norm/row_norm_cpu_forward-inl.h"

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

template <typename T, typename W>
void WriteRowF64(const RowNormForwardArgs& args, const RowStatistics& statistics, const T* s,
                 T* y) {
  const RowFormulaF64<T, W> formula(args, statistics);
  ForEachVector(args.hidden_size, [&](auto access, int64_t i)
                                      HWY_ATTR { access.Store(formula.At(access, s, i), y + i); });
}

template <typename T, typename W, class Mode>
void WriteRowF32(const RowNormForwardArgs& args, const RowStatistics& statistics, const T* s, T* y,
                 Mode mode) {
  const RowFormulaF32<T, W> formula(args, statistics);
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
  for (int64_t row = begin; row < end; ++row) {
    const PreparedRow<T> prepared(args, row);
    WriteRow<T, W>(args, prepared.statistics, policy, prepared.s,
                   static_cast<T*>(args.y) + row * args.hidden_size);
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
    const int64_t end = std::min(args.rows, begin + rows_per_task);
    if (args.output_format != OutputFormat::kSameAsInput) {
      RowNormQuantizedRowsCpu(args, begin, end);
      return;
    }
    HWY_DYNAMIC_DISPATCH(RowNormForwardRows)
    (args, policy, begin, end);
  });
  return Status();
}

}  // namespace norm::internal
#endif  // HWY_ONCE
