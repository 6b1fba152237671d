// The vectorized passes of BatchNorm on the CPU. Reductions read memory once: a block's mean, then
// its squared deviations while it is in cache, blocks merged by count. kMajor vectors run along a
// channel, kMinor vectors across channels.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "batch_norm/batch_norm_cpu_vector.cc"
#include "hwy/foreach_target.h"  // before highway.h: compiles this file once per target
#include "hwy/highway.h"

#include <algorithm>

#include "batch_norm/batch_norm_cpu.h"
#include "cpu/dtype_visitor.h"
#include "cpu/moments-inl.h"
#include "cpu/vector_access-inl.h"

HWY_BEFORE_NAMESPACE();
namespace norm::internal::HWY_NAMESPACE {

inline constexpr int64_t kBlockValues = 8192;  // kMajor: at most 64 KiB, read twice
inline constexpr int64_t kBlockRows = 64;      // kMinor: rows of one task's columns, read twice

/// The chunk and channels of one reduction task.
struct TaskRange {
  HWY_INLINE TaskRange(const ChannelPlan& plan, int64_t task)
      : chunk(task % plan.chunks),
        begin(chunk * plan.values_per_chunk),
        end(std::min(plan.count, begin + plan.values_per_chunk)),
        first_channel(task / plan.chunks * plan.channels_per_task),
        last_channel(std::min(plan.channels, first_channel + plan.channels_per_task)) {}

  int64_t chunk;
  int64_t begin;  // values [begin, end) of each channel
  int64_t end;
  int64_t first_channel;
  int64_t last_channel;
};

/// Calls body(offset, length) for the contiguous pieces of values [begin, end) of a channel of a
/// kMajor tensor.
template <typename Body>
HWY_INLINE void ForEachSegment(const ChannelPlan& plan, int64_t channel, int64_t begin, int64_t end,
                               const Body& body) {
  int64_t batch = begin / plan.spatial;
  int64_t position = begin % plan.spatial;
  for (int64_t value = begin; value < end; ++batch, position = 0) {
    const int64_t length = std::min(plan.spatial - position, end - value);
    body((batch * plan.channels + channel) * plan.spatial + position, length);
    value += length;
  }
}

template <typename T>
Moments MajorBlockMoments(const ChannelPlan& plan, const T* x, int64_t channel, int64_t begin,
                          int64_t end) {
  Moments block;
  block.count = static_cast<double>(end - begin);
  Accumulators sum;
  ForEachSegment(plan, channel, begin, end, [&](int64_t offset, int64_t length) HWY_ATTR {
    ForEachVectorUnrolled(length, [&](auto access, int64_t i, auto k) HWY_ATTR {
      sum.At(k) = hn::Add(sum.At(k), access.Load(x + offset + i));
    });
  });
  block.mean = sum.Sum() / block.count;
  const DoubleVector mean = hn::Set(DoubleTag(), block.mean);
  Accumulators deviations;
  Accumulators squares;
  ForEachSegment(plan, channel, begin, end, [&](int64_t offset, int64_t length) HWY_ATTR {
    ForEachVectorUnrolled(length, [&](auto access, int64_t i, auto k) HWY_ATTR {
      const DoubleVector deviation = access.Mask(hn::Sub(access.Load(x + offset + i), mean));
      deviations.At(k) = hn::Add(deviations.At(k), deviation);
      squares.At(k) = hn::MulAdd(deviation, deviation, squares.At(k));
    });
  });
  const double left = deviations.Sum();
  block.mean_low = left / block.count;
  block.m2 = std::max(squares.Sum() - left * block.mean_low, 0.0);
  return block;
}

template <typename T>
void MajorMoments(const ChannelPlan& plan, const T* x, const ChannelPartials& partials,
                  const TaskRange& range) {
  for (int64_t channel = range.first_channel; channel < range.last_channel; ++channel) {
    Moments total;
    for (int64_t begin = range.begin; begin < range.end; begin += kBlockValues) {
      const int64_t end = std::min(range.end, begin + kBlockValues);
      total = Merge(total, MajorBlockMoments(plan, x, channel, begin, end));
    }
    const int64_t at = range.chunk * plan.channels + channel;
    partials.first[at] = total.mean;
    partials.second[at] = total.mean_low;
    partials.third[at] = total.m2;
  }
}

/// Moments of one vector of channels.
struct VectorMoments {
  DoubleVector mean;
  DoubleVector mean_low;
  DoubleVector m2;
};

/// As Merge in cpu/moments.h, lane by lane, for counts that all lanes share.
HWY_INLINE VectorMoments MergeVectors(const VectorMoments& a, double a_count,
                                      const VectorMoments& b, double b_count) {
  const DoubleTag d;
  const double count = a_count + b_count;
  const DoubleVector delta = hn::Add(hn::Sub(b.mean, a.mean), hn::Sub(b.mean_low, a.mean_low));
  const DoubleVector step = hn::MulAdd(delta, hn::Set(d, b_count / count), a.mean_low);
  const DoubleVector mean = hn::Add(a.mean, step);
  const DoubleVector rounded_step = hn::Sub(mean, a.mean);
  const DoubleVector mean_low =
      hn::Add(hn::Sub(a.mean, hn::Sub(mean, rounded_step)), hn::Sub(step, rounded_step));
  const DoubleVector spread =
      hn::Mul(hn::Mul(delta, delta), hn::Set(d, a_count * (b_count / count)));
  return {mean, mean_low, hn::Add(hn::Add(a.m2, b.m2), spread)};
}

/// Moments of `rows` rows of one vector of channels; `x` is at its first row.
template <typename Access, typename T>
HWY_INLINE VectorMoments RowBlockMoments(Access access, const T* x, int64_t stride, int64_t rows) {
  const DoubleTag d;
  const DoubleVector inverse_count = hn::Set(d, 1.0 / static_cast<double>(rows));
  DoubleVector even = hn::Zero(d);
  DoubleVector odd = hn::Zero(d);
  for (int64_t row = 0; row + 1 < rows; row += 2) {
    even = hn::Add(even, access.Load(x + row * stride));
    odd = hn::Add(odd, access.Load(x + (row + 1) * stride));
  }
  if (rows % 2 != 0) {
    even = hn::Add(even, access.Load(x + (rows - 1) * stride));
  }
  VectorMoments block;
  block.mean = hn::Mul(hn::Add(even, odd), inverse_count);
  DoubleVector left = hn::Zero(d);
  DoubleVector squares = hn::Zero(d);
  for (int64_t row = 0; row < rows; ++row) {
    const DoubleVector deviation = hn::Sub(access.Load(x + row * stride), block.mean);
    left = hn::Add(left, deviation);
    squares = hn::MulAdd(deviation, deviation, squares);
  }
  block.mean_low = hn::Mul(left, inverse_count);
  block.m2 = hn::NegMulAdd(left, block.mean_low, squares);
  return block;
}

template <typename T>
void MinorMoments(const ChannelPlan& plan, const T* x, const ChannelPartials& partials,
                  const TaskRange& range) {
  const int64_t at = range.chunk * plan.channels + range.first_channel;
  for (int64_t begin = range.begin; begin < range.end; begin += kBlockRows) {
    const int64_t rows = std::min(range.end - begin, kBlockRows);
    const T* block_x = x + begin * plan.channels + range.first_channel;
    ForEachVector(range.last_channel - range.first_channel, [&](auto access, int64_t i) HWY_ATTR {
      VectorMoments total = RowBlockMoments(access, block_x + i, plan.channels, rows);
      if (begin > range.begin) {
        const VectorMoments before = {access.Load(partials.first + at + i),
                                      access.Load(partials.second + at + i),
                                      access.Load(partials.third + at + i)};
        total = MergeVectors(before, static_cast<double>(begin - range.begin), total,
                             static_cast<double>(rows));
      }
      access.Store(total.mean, partials.first + at + i);
      access.Store(total.mean_low, partials.second + at + i);
      access.Store(total.m2, partials.third + at + i);
    });
  }
}

template <typename T>
void MajorGradients(const ChannelPlan& plan, const T* dy, const T* x, const ChannelTable& table,
                    const ChannelPartials& partials, const TaskRange& range) {
  for (int64_t channel = range.first_channel; channel < range.last_channel; ++channel) {
    const DoubleVector mean = hn::Set(DoubleTag(), table.mean[channel]);
    Accumulators deviations;
    Accumulators gradients;
    Accumulators products;
    ForEachSegment(
        plan, channel, range.begin, range.end, [&](int64_t offset, int64_t length) HWY_ATTR {
          ForEachVectorUnrolled(length, [&](auto access, int64_t i, auto k) HWY_ATTR {
            const DoubleVector deviation = access.Mask(hn::Sub(access.Load(x + offset + i), mean));
            const DoubleVector grad = access.Load(dy + offset + i);
            deviations.At(k) = hn::Add(deviations.At(k), deviation);
            gradients.At(k) = hn::Add(gradients.At(k), grad);
            products.At(k) = hn::MulAdd(grad, deviation, products.At(k));
          });
        });
    const int64_t at = range.chunk * plan.channels + channel;
    partials.first[at] = deviations.Sum();
    partials.second[at] = gradients.Sum();
    partials.third[at] = products.Sum();
  }
}

template <typename T>
void MinorGradients(const ChannelPlan& plan, const T* dy, const T* x, const ChannelTable& table,
                    const ChannelPartials& partials, const TaskRange& range) {
  const int64_t at = range.chunk * plan.channels + range.first_channel;
  const int64_t width = range.last_channel - range.first_channel;
  for (double* partial : {partials.first, partials.second, partials.third}) {
    std::fill_n(partial + at, width, 0.0);
  }
  for (int64_t begin = range.begin; begin < range.end; begin += kBlockRows) {
    const int64_t rows = std::min(range.end - begin, kBlockRows);
    const int64_t block = begin * plan.channels + range.first_channel;
    ForEachVector(width, [&](auto access, int64_t i) HWY_ATTR {
      const DoubleVector mean = access.Load(table.mean + range.first_channel + i);
      DoubleVector deviations = access.Load(partials.first + at + i);
      DoubleVector gradients = access.Load(partials.second + at + i);
      DoubleVector products = access.Load(partials.third + at + i);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t offset = block + row * plan.channels + i;
        const DoubleVector deviation = hn::Sub(access.Load(x + offset), mean);
        const DoubleVector grad = access.Load(dy + offset);
        deviations = hn::Add(deviations, deviation);
        gradients = hn::Add(gradients, grad);
        products = hn::MulAdd(grad, deviation, products);
      }
      access.Store(deviations, partials.first + at + i);
      access.Store(gradients, partials.second + at + i);
      access.Store(products, partials.third + at + i);
    });
  }
}

/// Channel parameters as vectors: broadcast along a channel, or loaded across channels.
struct BroadcastChannel {
  int64_t channel;
  template <typename Access>
  HWY_INLINE DoubleVector Load(Access access, const double* table, int64_t i) const {
    return hn::Set(DoubleTag(), table[channel]);
  }
};
struct NeighbourChannels {
  template <typename Access>
  HWY_INLINE DoubleVector Load(Access access, const double* table, int64_t i) const {
    return access.Load(table + i);
  }
};

template <typename Channels, typename T>
void NormalizeRun(Channels channels, const ChannelTable& table, int64_t length, const T* x, T* y) {
  ForEachVector(length, [&](auto access, int64_t i) HWY_ATTR {
    const DoubleVector deviation =
        hn::Sub(hn::Sub(access.Load(x + i), channels.Load(access, table.mean, i)),
                channels.Load(access, table.mean_low, i));
    const DoubleVector h = hn::Mul(deviation, channels.Load(access, table.rstd, i));
    access.Store(
        hn::MulAdd(h, channels.Load(access, table.weight, i), channels.Load(access, table.bias, i)),
        y + i);
  });
}

template <typename Channels, typename T>
void DifferentiateRun(Channels channels, const ChannelTable& table, int64_t length, const T* dy,
                      const T* x, T* dx) {
  ForEachVector(length, [&](auto access, int64_t i) HWY_ATTR {
    const DoubleVector rstd = channels.Load(access, table.rstd, i);
    const DoubleVector deviation =
        hn::Sub(hn::Sub(access.Load(x + i), channels.Load(access, table.mean, i)),
                channels.Load(access, table.mean_low, i));
    const DoubleVector h = hn::Mul(deviation, rstd);
    const DoubleVector g = hn::Sub(access.Load(dy + i), channels.Load(access, table.mean_dy, i));
    const DoubleVector gradient = hn::NegMulAdd(h, channels.Load(access, table.mean_dyh, i), g);
    access.Store(hn::Mul(hn::Mul(gradient, rstd), channels.Load(access, table.weight, i)), dx + i);
  });
}

/// Calls body(channels, offset, length) for every contiguous run of one task of an elementwise
/// pass.
template <typename Body>
void ForEachRun(const ChannelPlan& plan, int64_t task, const Body& body) {
  const int64_t begin = task * plan.items_per_task;
  const int64_t end = std::min(plan.items, begin + plan.items_per_task);
  for (int64_t item = begin; item < end; ++item) {
    if (plan.order == ChannelOrder::kMinor) {
      body(NeighbourChannels(), item * plan.channels, plan.channels);
      continue;
    }
    const int64_t segment = item / plan.pieces_per_segment;
    const int64_t piece = item % plan.pieces_per_segment;
    const int64_t position = piece * plan.values_per_piece;
    body(BroadcastChannel{segment % plan.channels}, segment * plan.spatial + position,
         std::min(plan.values_per_piece, plan.spatial - position));
  }
}

void PartialMomentsTask(const ChannelPlan& plan, DType dtype, const void* x,
                        const ChannelPartials& partials, int64_t task) {
  VisitDType(dtype, [&](auto tag) {
    const auto* values = static_cast<const typename decltype(tag)::Type*>(x);
    const TaskRange range(plan, task);
    if (plan.order == ChannelOrder::kMajor) {
      MajorMoments(plan, values, partials, range);
    } else {
      MinorMoments(plan, values, partials, range);
    }
  });
}

void PartialGradientsTask(const ChannelPlan& plan, DType dtype, const void* dy, const void* x,
                          const ChannelTable& table, const ChannelPartials& partials,
                          int64_t task) {
  VisitDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const TaskRange range(plan, task);
    const T* gradients = static_cast<const T*>(dy);
    const T* values = static_cast<const T*>(x);
    if (plan.order == ChannelOrder::kMajor) {
      MajorGradients(plan, gradients, values, table, partials, range);
    } else {
      MinorGradients(plan, gradients, values, table, partials, range);
    }
  });
}

void NormalizeItemsTask(const ChannelPlan& plan, DType dtype, const void* x,
                        const ChannelTable& table, void* y, int64_t task) {
  VisitDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    ForEachRun(plan, task, [&](auto channels, int64_t offset, int64_t length) {
      NormalizeRun(channels, table, length, static_cast<const T*>(x) + offset,
                   static_cast<T*>(y) + offset);
    });
  });
}

void DifferentiateItemsTask(const ChannelPlan& plan, DType dtype, const void* dy, const void* x,
                            const ChannelTable& table, void* dx, int64_t task) {
  VisitDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    ForEachRun(plan, task, [&](auto channels, int64_t offset, int64_t length) {
      DifferentiateRun(channels, table, length, static_cast<const T*>(dy) + offset,
                       static_cast<const T*>(x) + offset, static_cast<T*>(dx) + offset);
    });
  });
}

}  // namespace norm::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace norm::internal {

HWY_EXPORT(PartialMomentsTask);
HWY_EXPORT(PartialGradientsTask);
HWY_EXPORT(NormalizeItemsTask);
HWY_EXPORT(DifferentiateItemsTask);

void PartialMoments(const ChannelPlan& plan, DType dtype, const void* x,
                    const ChannelPartials& partials, int64_t task) {
  HWY_DYNAMIC_DISPATCH(PartialMomentsTask)(plan, dtype, x, partials, task);
}

void PartialGradients(const ChannelPlan& plan, DType dtype, const void* dy, const void* x,
                      const ChannelTable& table, const ChannelPartials& partials, int64_t task) {
  HWY_DYNAMIC_DISPATCH(PartialGradientsTask)(plan, dtype, dy, x, table, partials, task);
}

void NormalizeItems(const ChannelPlan& plan, DType dtype, const void* x, const ChannelTable& table,
                    void* y, int64_t task) {
  HWY_DYNAMIC_DISPATCH(NormalizeItemsTask)(plan, dtype, x, table, y, task);
}

void DifferentiateItems(const ChannelPlan& plan, DType dtype, const void* dy, const void* x,
                        const ChannelTable& table, void* dx, int64_t task) {
  HWY_DYNAMIC_DISPATCH(DifferentiateItemsTask)(plan, dtype, dy, x, table, dx, task);
}

}  // namespace norm::internal
#endif  // HWY_ONCE
