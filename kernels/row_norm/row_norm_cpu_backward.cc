// Row norms on the CPU, backward. Per row: one reduction (two when the statistics are recomputed)
// and one pass from cache that writes dx and adds to the dweight and dbias partials of the row's
// chunk. Chunks depend on the sizes only; their f64 partials lie in the workspace and are added in
// order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "row_norm/row_norm_cpu_backward.cc"
#include "hwy/foreach_target.h"  // before highway.h: compiles this file once per target
#include "hwy/highway.h"

#include <algorithm>
#include <cmath>

#include "cpu/dtype_visitor.h"
#include "cpu/moments-inl.h"
#include "cpu/parallel_tasks.h"
#include "cpu/vector_access-inl.h"
#include "row_norm/row_norm_cpu.h"
#include "validation/argument_checks.h"

HWY_BEFORE_NAMESPACE();
namespace norm::internal::HWY_NAMESPACE {

/// What dx needs to know of its row.
struct RowGradients {
  double mean;      // 0 for RMS
  double mean_low;  // mean + mean_low is the mean of x, also when a rounded mean was given
  double rstd;
  double mean_g;   // mean of dy * weight; 0 for RMS
  double mean_gh;  // mean of dy * weight * h
};

template <typename T, typename W>
class BackwardRow {
 public:
  explicit BackwardRow(const RowNormBackwardArgs& args)
      : args_(args), weight_(static_cast<const W*>(args.weight)) {}

  RowGradients Reduce(const T* dy, const T* x, int64_t row) const {
    const double count = static_cast<double>(args_.hidden_size);
    RowGradients result = {};
    if (args_.rstd != nullptr) {
      result.rstd = static_cast<const StatisticsOf<T>*>(args_.rstd)[row];
    }
    if (args_.kind == RowNormKind::kLayer) {
      if (args_.rstd != nullptr) {
        result.mean = static_cast<const StatisticsOf<T>*>(args_.mean)[row];
      } else {
        const Moments moments = ContiguousMoments(x, args_.hidden_size);
        result.mean = moments.mean;
        result.rstd = 1.0 / std::sqrt(moments.m2 / count + args_.eps);
      }
    } else if (args_.rstd == nullptr) {
      result.rstd = 1.0 / std::sqrt(SumOfSquares(x, args_.hidden_size) / count + args_.eps);
    }

    const DoubleVector mean = hn::Set(DoubleTag(), result.mean);
    Accumulators sum_deviation;
    Accumulators sum_g;
    Accumulators sum_g_deviation;
    ForEachVectorUnrolled(args_.hidden_size, [&](auto access, int64_t i, auto k) HWY_ATTR {
      const DoubleVector deviation = access.Mask(hn::Sub(access.Load(x + i), mean));
      const DoubleVector g = ScaledGradient(access, dy, i);
      sum_deviation.At(k) = hn::Add(sum_deviation.At(k), deviation);
      sum_g.At(k) = hn::Add(sum_g.At(k), g);
      sum_g_deviation.At(k) = hn::MulAdd(g, deviation, sum_g_deviation.At(k));
    });
    double g_deviation = sum_g_deviation.Sum();
    if (args_.kind == RowNormKind::kLayer) {
      const double g = sum_g.Sum();
      result.mean_low = sum_deviation.Sum() / count;
      result.mean_g = g / count;
      g_deviation -= result.mean_low * g;
    }
    result.mean_gh = result.rstd * g_deviation / count;
    return result;
  }

  /// Writes dx and adds this row's terms to dweight and dbias, where they are not null.
  void Write(const RowGradients& row, const T* dy, const T* x, const T* dresidual_sum, T* dx,
             double* dweight, double* dbias) const {
    const DoubleTag d;
    const DoubleVector mean = hn::Set(d, row.mean);
    const DoubleVector mean_low = hn::Set(d, row.mean_low);
    const DoubleVector rstd = hn::Set(d, row.rstd);
    const DoubleVector mean_g = hn::Set(d, row.mean_g);
    const DoubleVector mean_gh = hn::Set(d, row.mean_gh);
    ForEachVector(args_.hidden_size, [&](auto access, int64_t i) HWY_ATTR {
      const DoubleVector deviation = hn::Sub(hn::Sub(access.Load(x + i), mean), mean_low);
      const DoubleVector h = hn::Mul(deviation, rstd);
      const DoubleVector g = ScaledGradient(access, dy, i);
      const DoubleVector grad = access.Load(dy + i);
      DoubleVector v = hn::Mul(rstd, hn::NegMulAdd(h, mean_gh, hn::Sub(g, mean_g)));
      if (dresidual_sum != nullptr) {
        v = hn::Add(v, access.Load(dresidual_sum + i));
      }
      if (dweight != nullptr) {
        access.Store(hn::MulAdd(grad, h, access.Load(dweight + i)), dweight + i);
      }
      if (dbias != nullptr) {
        access.Store(hn::Add(grad, access.Load(dbias + i)), dbias + i);
      }
      access.Store(v, dx + i);
    });
  }

 private:
  template <typename Access>
  HWY_INLINE DoubleVector ScaledGradient(Access access, const T* dy, int64_t i) const {
    const DoubleVector grad = access.Load(dy + i);
    if (weight_ == nullptr) {
      return grad;
    }
    const DoubleVector offset = hn::Set(DoubleTag(), args_.weight_offset);
    return hn::Mul(grad, hn::Add(access.Load(weight_ + i), offset));
  }

  const RowNormBackwardArgs& args_;
  const W* weight_;
};

template <typename T, typename W>
void BackwardRows(const RowNormBackwardArgs& args, int64_t begin, int64_t end, double* dweight,
                  double* dbias) {
  const BackwardRow<T, W> backward(args);
  const T* dy = static_cast<const T*>(args.dy);
  const T* x = static_cast<const T*>(args.x);
  const T* dresidual_sum = static_cast<const T*>(args.dresidual_sum);
  T* dx = static_cast<T*>(args.dx);
  for (double* partial : {dweight, dbias}) {
    if (partial != nullptr) {
      std::fill_n(partial, args.hidden_size, 0.0);
    }
  }
  for (int64_t row = begin; row < end; ++row) {
    const int64_t offset = row * args.hidden_size;
    const RowGradients gradients = backward.Reduce(dy + offset, x + offset, row);
    backward.Write(gradients, dy + offset, x + offset,
                   dresidual_sum == nullptr ? nullptr : dresidual_sum + offset, dx + offset,
                   dweight, dbias);
  }
}

void RowNormBackwardRows(const RowNormBackwardArgs& args, int64_t begin, int64_t end,
                         double* dweight, double* dbias) {
  VisitDTypePair(args.dtype, args.weight_dtype, [&](auto x_tag, auto weight_tag) {
    BackwardRows<typename decltype(x_tag)::Type, typename decltype(weight_tag)::Type>(
        args, begin, end, dweight, dbias);
  });
}

}  // namespace norm::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace norm::internal {
namespace {

constexpr int64_t kMaxChunks = 64;  // more tasks than threads, few enough partials
constexpr int64_t kMinChunkElements = 32
                                      << 10;  // below, a chunk's partials cost more than its rows
constexpr int64_t kMaxPartialElements = 4 << 20;  // bounds the workspace to 32 MiB per gradient
constexpr int64_t kColumnsPerTask = 4 << 10;

/// How rows are split. Depends on the sizes only: the order of every addition follows from it.
struct ChunkPlan {
  int64_t chunks = 0;
  int64_t rows_per_chunk = 0;
};

ChunkPlan MakeChunkPlan(const RowNormBackwardArgs& args) {
  if (args.rows == 0) {
    return {};
  }
  const int64_t by_work = args.rows * args.hidden_size / kMinChunkElements;
  const int64_t by_memory = kMaxPartialElements / args.hidden_size;
  const int64_t wanted =
      std::clamp<int64_t>(std::min(by_work, by_memory), 1, std::min(kMaxChunks, args.rows));
  ChunkPlan plan;
  plan.rows_per_chunk = CeilDiv(args.rows, wanted);
  plan.chunks = CeilDiv(args.rows, plan.rows_per_chunk);
  return plan;
}

/// dweight or dbias: where its partials are and where it goes.
struct Gradient {
  const double* partials;
  void* result;
};

template <typename W>
void AddPartials(const Gradient& gradient, int64_t chunks, int64_t hidden_size, int64_t begin,
                 int64_t end) {
  for (int64_t column = begin; column < end; ++column) {
    double sum = 0.0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      sum += gradient.partials[chunk * hidden_size + column];
    }
    Assign(static_cast<W*>(gradient.result)[column], sum);
  }
}

}  // namespace

HWY_EXPORT(RowNormBackwardRows);

size_t RowNormBackwardCpuWorkspaceBytes(const RowNormBackwardArgs& args) {
  const int64_t gradients = (args.dweight != nullptr ? 1 : 0) + (args.dbias != nullptr ? 1 : 0);
  return static_cast<size_t>(gradients * MakeChunkPlan(args).chunks * args.hidden_size) *
         sizeof(double);
}

Status RowNormBackwardCpu(const RowNormBackwardArgs& args, Workspace workspace,
                          ThreadPool& threads) {
  NORM_RETURN_IF_ERROR(Validate(args));
  NORM_RETURN_IF_ERROR(CheckWorkspace(workspace, RowNormBackwardCpuWorkspaceBytes(args)));
  const ChunkPlan plan = MakeChunkPlan(args);
  double* next_partials = static_cast<double*>(workspace.data);
  double* dweight = nullptr;
  double* dbias = nullptr;
  if (args.dweight != nullptr) {
    dweight = next_partials;
    next_partials += plan.chunks * args.hidden_size;
  }
  if (args.dbias != nullptr) {
    dbias = next_partials;
  }

  const int64_t bytes = args.rows * args.hidden_size * static_cast<int64_t>(DTypeSize(args.dtype));
  RunTasks(threads, bytes, plan.chunks, [&](int64_t chunk) {
    const int64_t begin = chunk * plan.rows_per_chunk;
    const int64_t partial = chunk * args.hidden_size;
    HWY_DYNAMIC_DISPATCH(RowNormBackwardRows)
    (args, begin, std::min(args.rows, begin + plan.rows_per_chunk),
     dweight == nullptr ? nullptr : dweight + partial,
     dbias == nullptr ? nullptr : dbias + partial);
  });

  for (const Gradient& gradient : {Gradient{dweight, args.dweight}, Gradient{dbias, args.dbias}}) {
    if (gradient.result == nullptr) {
      continue;
    }
    VisitDType(args.weight_dtype, [&](auto tag) {
      using W = typename decltype(tag)::Type;
      const int64_t partial_bytes =
          plan.chunks * args.hidden_size * static_cast<int64_t>(sizeof(double));
      RunTasks(threads, partial_bytes, CeilDiv(args.hidden_size, kColumnsPerTask),
               [&](int64_t task) {
                 const int64_t begin = task * kColumnsPerTask;
                 AddPartials<W>(gradient, plan.chunks, args.hidden_size, begin,
                                std::min(args.hidden_size, begin + kColumnsPerTask));
               });
    });
  }
  return Status();
}

}  // namespace norm::internal
#endif  // HWY_ONCE
