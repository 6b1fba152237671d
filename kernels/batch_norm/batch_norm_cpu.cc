// BatchNorm on the CPU: plan, reduce per channel, derive one table of channel parameters, apply it
// elementwise.
#include "batch_norm/batch_norm_cpu.h"

#include <algorithm>
#include <cmath>

#include "cpu/dtype_visitor.h"
#include "cpu/moments.h"
#include "cpu/parallel_tasks.h"
#include "validation/argument_checks.h"

namespace norm::internal {
namespace {

constexpr int64_t kMaxChunks = 64;                // more tasks than threads, few enough partials
constexpr int64_t kMinChunkValues = 32 << 10;     // below, a chunk is not worth a task
constexpr int64_t kMaxPartialElements = 4 << 20;  // bounds each partial array to 32 MiB
constexpr int64_t kMinorChannelsPerTask = 512;    // a row of f32 then spans 2 KiB

constexpr int64_t kPartialArrays = 3;  // of ChannelPartials, each [chunks, channels]
constexpr int64_t kForwardArrays = 5;  // of ChannelTable: all but the backward ones
constexpr int64_t kBackwardArrays = 6;

}  // namespace

ChannelPlan MakeChannelPlan(const BatchNormShape& shape) {
  ChannelPlan plan;
  plan.batch = shape.batch;
  plan.channels = shape.channels;
  plan.spatial = shape.spatial;
  plan.count = shape.batch * shape.spatial;
  if (plan.channels == 1) {
    plan.batch = 1;
    plan.spatial = plan.count;
  } else if (shape.layout == BatchNormLayout::kNhwc || shape.spatial == 1) {
    plan.order = ChannelOrder::kMinor;
    plan.batch = plan.count;
    plan.spatial = 1;
  }
  if (plan.count == 0) {
    return plan;
  }

  const int64_t reduced_together =
      plan.order == ChannelOrder::kMajor ? 1 : std::min(plan.channels, kMinorChannelsPerTask);
  const int64_t by_work = plan.count * reduced_together / kMinChunkValues;
  const int64_t by_memory = kMaxPartialElements / plan.channels;
  const int64_t wanted =
      std::clamp<int64_t>(std::min(by_work, by_memory), 1, std::min(kMaxChunks, plan.count));
  plan.values_per_chunk = CeilDiv(plan.count, wanted);
  plan.chunks = CeilDiv(plan.count, plan.values_per_chunk);
  plan.channels_per_task = plan.order == ChannelOrder::kMajor
                               ? std::max<int64_t>(1, kTaskElements / plan.values_per_chunk)
                               : kMinorChannelsPerTask;
  plan.reduction_tasks = plan.chunks * CeilDiv(plan.channels, plan.channels_per_task);

  int64_t item_elements = plan.channels;
  plan.items = plan.batch;
  if (plan.order == ChannelOrder::kMajor) {
    plan.values_per_piece = std::min(plan.spatial, 4 * kTaskElements);
    plan.pieces_per_segment = CeilDiv(plan.spatial, plan.values_per_piece);
    plan.items = plan.batch * plan.channels * plan.pieces_per_segment;
    item_elements = plan.values_per_piece;
  }
  plan.items_per_task = std::max<int64_t>(1, kTaskElements / item_elements);
  plan.item_tasks = CeilDiv(plan.items, plan.items_per_task);
  return plan;
}

namespace {

/// Hands out arrays of the workspace.
class WorkspaceArrays {
 public:
  explicit WorkspaceArrays(Workspace workspace) : next_(static_cast<double*>(workspace.data)) {}

  double* Take(int64_t elements) {
    double* taken = next_;
    next_ += elements;
    return taken;
  }

 private:
  double* next_;
};

ChannelPartials TakePartials(WorkspaceArrays& arrays, const ChannelPlan& plan) {
  const int64_t elements = plan.chunks * plan.channels;
  return {arrays.Take(elements), arrays.Take(elements), arrays.Take(elements)};
}

void LoadChannels(DType dtype, const void* from, double fallback, int64_t channels, double* to) {
  if (from == nullptr) {
    std::fill_n(to, channels, fallback);
    return;
  }
  VisitDType(dtype, [&](auto tag) {
    const auto* values = static_cast<const typename decltype(tag)::Type*>(from);
    for (int64_t c = 0; c < channels; ++c) {
      to[c] = ToDouble(values[c]);
    }
  });
}

void StoreChannel(DType dtype, double value, void* to, int64_t channel) {
  if (to == nullptr) {
    return;
  }
  VisitDType(dtype, [&](auto tag) {
    Assign(static_cast<typename decltype(tag)::Type*>(to)[channel], value);
  });
}

double LoadStatistic(DType statistics, const void* from, int64_t channel) {
  return statistics == DType::kF64 ? static_cast<const double*>(from)[channel]
                                   : static_cast<const float*>(from)[channel];
}

int64_t TensorBytes(const ChannelPlan& plan, DType dtype) {
  return plan.count * plan.channels * static_cast<int64_t>(DTypeSize(dtype));
}

/// Moments of one channel, its chunks merged in order.
Moments MergeChunks(const ChannelPlan& plan, const ChannelPartials& partials, int64_t channel) {
  Moments total;
  for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
    const int64_t at = chunk * plan.channels + channel;
    const int64_t begin = chunk * plan.values_per_chunk;
    const int64_t values = std::min(plan.values_per_chunk, plan.count - begin);
    total = Merge(total, {static_cast<double>(values), partials.first[at], partials.second[at],
                          partials.third[at]});
  }
  return total;
}

double SumChunks(const ChannelPlan& plan, const double* partial, int64_t channel) {
  double sum = 0.0;
  for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
    sum += partial[chunk * plan.channels + channel];
  }
  return sum;
}

void FinishTraining(const BatchNormForwardArgs& args, const ChannelPlan& plan,
                    const ChannelPartials& partials, const ChannelTable& table) {
  const DType statistics = StatisticsDType(args.dtype);
  for (int64_t c = 0; c < plan.channels; ++c) {
    const Moments moments = MergeChunks(plan, partials, c);
    const double mean = moments.mean + moments.mean_low;
    const double var = plan.count == 0 ? 0.0 : moments.m2 / moments.count;
    table.mean[c] = moments.mean;
    table.mean_low[c] = moments.mean_low;
    table.rstd[c] = 1.0 / std::sqrt(var + args.eps);
    StoreChannel(statistics, mean, args.mean, c);
    StoreChannel(statistics, table.rstd[c], args.rstd, c);
    if (args.running_mean == nullptr) {
      continue;
    }
    double running_mean = LoadStatistic(statistics, args.running_mean, c);
    double running_var = LoadStatistic(statistics, args.running_var, c);
    if (plan.count > 0) {
      const double unbiased = moments.m2 / (moments.count - 1.0);
      running_mean = (1.0 - args.momentum) * running_mean + args.momentum * mean;
      running_var = (1.0 - args.momentum) * running_var + args.momentum * unbiased;
    }
    StoreChannel(statistics, running_mean, args.new_running_mean, c);
    StoreChannel(statistics, running_var, args.new_running_var, c);
  }
}

void LoadRunning(DType statistics, const void* mean, const void* var, double eps,
                 const ChannelPlan& plan, const ChannelTable& table) {
  LoadChannels(statistics, mean, 0.0, plan.channels, table.mean);
  std::fill_n(table.mean_low, plan.channels, 0.0);
  for (int64_t c = 0; c < plan.channels; ++c) {
    table.rstd[c] = 1.0 / std::sqrt(LoadStatistic(statistics, var, c) + eps);
  }
}

}  // namespace
}  // namespace norm::internal

namespace norm::cpu {

using internal::ChannelPartials;
using internal::ChannelPlan;
using internal::ChannelTable;

size_t BatchNormForwardWorkspaceBytes(const BatchNormForwardArgs& args) {
  const ChannelPlan plan = internal::MakeChannelPlan(args.shape);
  const int64_t chunks = args.mode == BatchNormMode::kTraining ? plan.chunks : 0;
  return static_cast<size_t>((internal::kPartialArrays * chunks + internal::kForwardArrays) *
                             plan.channels) *
         sizeof(double);
}

Status BatchNormForward(const BatchNormForwardArgs& args, Workspace workspace,
                        ThreadPool& threads) {
  NORM_RETURN_IF_ERROR(Validate(args));
  NORM_RETURN_IF_ERROR(
      internal::CheckWorkspace(workspace, cpu::BatchNormForwardWorkspaceBytes(args)));
  const ChannelPlan plan = internal::MakeChannelPlan(args.shape);
  const DType statistics = StatisticsDType(args.dtype);
  const int64_t bytes = internal::TensorBytes(plan, args.dtype);
  internal::WorkspaceArrays arrays(workspace);
  ChannelTable table;
  for (double** array : {&table.mean, &table.mean_low, &table.rstd, &table.weight, &table.bias}) {
    *array = arrays.Take(plan.channels);
  }

  if (args.mode == BatchNormMode::kTraining) {
    const ChannelPartials partials = internal::TakePartials(arrays, plan);
    internal::RunTasks(threads, bytes, plan.reduction_tasks, [&](int64_t task) {
      internal::PartialMoments(plan, args.dtype, args.x, partials, task);
    });
    internal::FinishTraining(args, plan, partials, table);
  } else {
    internal::LoadRunning(statistics, args.running_mean, args.running_var, args.eps, plan, table);
    for (int64_t c = 0; c < plan.channels; ++c) {
      internal::StoreChannel(statistics, table.rstd[c], args.rstd, c);
    }
  }
  internal::LoadChannels(args.weight_dtype, args.weight, 1.0, plan.channels, table.weight);
  internal::LoadChannels(args.weight_dtype, args.bias, 0.0, plan.channels, table.bias);
  internal::RunTasks(threads, bytes, plan.item_tasks, [&](int64_t task) {
    internal::NormalizeItems(plan, args.dtype, args.x, table, args.y, task);
  });
  return Status();
}

size_t BatchNormBackwardWorkspaceBytes(const BatchNormBackwardArgs& args) {
  const ChannelPlan plan = internal::MakeChannelPlan(args.shape);
  return static_cast<size_t>((internal::kPartialArrays * plan.chunks + internal::kBackwardArrays) *
                             plan.channels) *
         sizeof(double);
}

Status BatchNormBackward(const BatchNormBackwardArgs& args, Workspace workspace,
                         ThreadPool& threads) {
  NORM_RETURN_IF_ERROR(Validate(args));
  NORM_RETURN_IF_ERROR(
      internal::CheckWorkspace(workspace, cpu::BatchNormBackwardWorkspaceBytes(args)));
  const ChannelPlan plan = internal::MakeChannelPlan(args.shape);
  const DType statistics = StatisticsDType(args.dtype);
  const int64_t bytes = internal::TensorBytes(plan, args.dtype);
  const bool training = args.mode == BatchNormMode::kTraining;
  internal::WorkspaceArrays arrays(workspace);
  ChannelTable table;
  for (double** array : {&table.mean, &table.mean_low, &table.rstd, &table.weight, &table.mean_dy,
                         &table.mean_dyh}) {
    *array = arrays.Take(plan.channels);
  }
  const ChannelPartials partials = internal::TakePartials(arrays, plan);

  if (!training) {
    internal::LoadRunning(statistics, args.mean, args.running_var, args.eps, plan, table);
  } else if (args.mean != nullptr) {
    internal::LoadChannels(statistics, args.mean, 0.0, plan.channels, table.mean);
    internal::LoadChannels(statistics, args.rstd, 0.0, plan.channels, table.rstd);
  } else {
    internal::RunTasks(threads, bytes, plan.reduction_tasks, [&](int64_t task) {
      internal::PartialMoments(plan, args.dtype, args.x, partials, task);
    });
    for (int64_t c = 0; c < plan.channels; ++c) {
      const internal::Moments moments = internal::MergeChunks(plan, partials, c);
      const double var = plan.count == 0 ? 0.0 : moments.m2 / moments.count;
      table.mean[c] = moments.mean;
      table.rstd[c] = 1.0 / std::sqrt(var + args.eps);
    }
  }
  internal::LoadChannels(args.weight_dtype, args.weight, 1.0, plan.channels, table.weight);

  const bool needs_sums = training || args.dweight != nullptr || args.dbias != nullptr;
  if (needs_sums) {
    internal::RunTasks(threads, 2 * bytes, plan.reduction_tasks, [&](int64_t task) {
      internal::PartialGradients(plan, args.dtype, args.dy, args.x, table, partials, task);
    });
  }
  const double count = static_cast<double>(plan.count);
  for (int64_t c = 0; c < plan.channels && !needs_sums; ++c) {
    table.mean_dy[c] = 0.0;
    table.mean_dyh[c] = 0.0;
  }
  for (int64_t c = 0; c < plan.channels && needs_sums; ++c) {
    const double dbias = internal::SumChunks(plan, partials.second, c);
    double products = internal::SumChunks(plan, partials.third, c);
    if (training && plan.count > 0) {
      // A mean rounded to f32 is off by mean_low; so are the products.
      table.mean_low[c] = internal::SumChunks(plan, partials.first, c) / count;
      products -= table.mean_low[c] * dbias;
    }
    const double dweight = plan.count == 0 ? 0.0 : products * table.rstd[c];
    internal::StoreChannel(args.weight_dtype, dbias, args.dbias, c);
    internal::StoreChannel(args.weight_dtype, dweight, args.dweight, c);
    table.mean_dy[c] = training ? dbias / count : 0.0;
    table.mean_dyh[c] = training ? dweight / count : 0.0;
  }
  internal::RunTasks(threads, 2 * bytes, plan.item_tasks, [&](int64_t task) {
    internal::DifferentiateItems(plan, args.dtype, args.dy, args.x, table, args.dx, task);
  });
  return Status();
}

Status BatchNormForwardSegments(std::span<const BatchNormForwardArgs> segments, Workspace workspace,
                                ThreadPool& threads) {
  NORM_RETURN_IF_ERROR(ValidateSegments(segments));
  for (const BatchNormForwardArgs& args : segments) {
    NORM_RETURN_IF_ERROR(BatchNormForward(args, workspace, threads));
  }
  return Status();
}

size_t BatchNormForwardSegmentsWorkspaceBytes(std::span<const BatchNormForwardArgs> segments) {
  size_t bytes = 0;
  for (const BatchNormForwardArgs& args : segments) {
    bytes = std::max(bytes, cpu::BatchNormForwardWorkspaceBytes(args));
  }
  return bytes;
}

Status BatchNormBackwardSegments(std::span<const BatchNormBackwardArgs> segments,
                                 Workspace workspace, ThreadPool& threads) {
  NORM_RETURN_IF_ERROR(ValidateSegments(segments));
  for (const BatchNormBackwardArgs& args : segments) {
    NORM_RETURN_IF_ERROR(BatchNormBackward(args, workspace, threads));
  }
  return Status();
}

size_t BatchNormBackwardSegmentsWorkspaceBytes(std::span<const BatchNormBackwardArgs> segments) {
  size_t bytes = 0;
  for (const BatchNormBackwardArgs& args : segments) {
    bytes = std::max(bytes, cpu::BatchNormBackwardWorkspaceBytes(args));
  }
  return bytes;
}

}  // namespace norm::cpu
