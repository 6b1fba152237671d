// Row norms on the CPU, forward. Per row: the residual sum where there is one, one reduction from
// memory, one pass from cache that writes y. Rows are tasks; a row's arithmetic depends on
// hidden_size only.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "row_norm/row_norm_cpu_forward.cc"
#include "hwy/foreach_target.h"  // before highway.h: compiles this file once per target
#include "hwy/highway.h"

#include <cmath>

#include "cpu/dtype_visitor.h"
#include "cpu/moments-inl.h"
#include "cpu/parallel_tasks.h"
#include "cpu/vector_access-inl.h"
#include "row_norm/row_norm_cpu.h"

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

template <typename T, typename W>
void WriteRow(const RowNormForwardArgs& args, const RowStatistics& statistics, const T* s, T* y) {
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

template <typename T, typename W>
void ForwardRows(const RowNormForwardArgs& args, int64_t begin, int64_t end) {
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
    WriteRow<T, W>(args, statistics, s, y + offset);
  }
}

void RowNormForwardRows(const RowNormForwardArgs& args, int64_t begin, int64_t end) {
  VisitDTypePair(args.dtype, args.weight_dtype, [&](auto x_tag, auto weight_tag) {
    ForwardRows<typename decltype(x_tag)::Type, typename decltype(weight_tag)::Type>(args, begin,
                                                                                     end);
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
  RunTasks(threads, bytes, tasks, [&](int64_t task) {
    const int64_t begin = task * rows_per_task;
    HWY_DYNAMIC_DISPATCH(RowNormForwardRows)
    (args, begin, std::min(args.rows, begin + rows_per_task));
  });
  return Status();
}

}  // namespace norm::internal
#endif  // HWY_ONCE
