#include <algorithm>
#include <optional>
#include <span>

#include "batch_norm/batch_norm_inference_cuda.h"
#include "batch_norm/batch_norm_passes_cuda.h"
#include "batch_norm/batch_norm_ring_cuda.h"
#include "batch_norm/batch_norm_rows_cuda.h"
#include "dispatch/launch.h"
#include "dispatch/workspace_layout.h"
#include "norm/kernels/batch_norm.h"
#include "validation/argument_checks.h"

namespace norm {
namespace {

using internal::DeviceTraits;
using internal::RingPlan;
using internal::WorkspaceLayout;

std::optional<RingPlan> PlanRing(const BatchNormForwardArgs& args, const DeviceTraits& device) {
  if (args.mode != BatchNormMode::kTraining) return std::nullopt;
  return internal::PlanForwardRing(args.shape, args.dtype, device);
}

std::optional<RingPlan> PlanRing(const BatchNormBackwardArgs& args, const DeviceTraits& device) {
  if (args.mode != BatchNormMode::kTraining) return std::nullopt;
  return internal::PlanBackwardRing(args.shape, args.dtype, device);
}

/// Room for the sums that the blocks of one launch publish.
uint64_t* TakePublished(WorkspaceLayout& layout, const RingPlan& plan, size_t segments) {
  return layout.Take<uint64_t>(plan.published_words * internal::RingLaunchSegments(segments));
}

/// Requests that one launch can serve, first to last: as many as follow the first with its shape.
template <typename Args>
size_t CountAlike(std::span<const Args> segments) {
  const auto differs = [&](const Args& args) {
    return args.shape.batch != segments.front().shape.batch;
  };
  return static_cast<size_t>(std::find_if(segments.begin(), segments.end(), differs) -
                             segments.begin());
}

size_t RunBytes(std::span<const BatchNormForwardArgs> segments, const DeviceTraits& device) {
  const BatchNormForwardArgs& first = segments.front();
  if (internal::TakesInference(first)) return 0;
  if (const std::optional<RingPlan> ring = PlanRing(first, device)) {
    WorkspaceLayout layout(nullptr);
    TakePublished(layout, *ring, segments.size());
    return layout.size_bytes();
  }
  if (const std::optional<size_t> bytes = internal::RowsBytes(first, device)) return *bytes;
  return internal::ForwardPassesBytes(first, device);
}

/// Validated segments of one shape.
Status EnqueueRun(std::span<const BatchNormForwardArgs> segments, const DeviceTraits& device,
                  Workspace workspace, StreamHandle stream) {
  const BatchNormForwardArgs& first = segments.front();
  if (internal::TakesInference(first)) return internal::LaunchInference(segments, stream);
  if (const std::optional<RingPlan> ring = PlanRing(first, device)) {
    WorkspaceLayout layout(workspace.data);
    return internal::LaunchForwardRing(*ring, segments,
                                       TakePublished(layout, *ring, segments.size()), stream);
  }
  for (const BatchNormForwardArgs& args : segments) {
    NORM_RETURN_IF_ERROR(internal::RowsBytes(args, device).has_value()
                             ? internal::LaunchRows(args, device, workspace, stream)
                             : internal::ForwardPasses(args, device, workspace, stream));
  }
  return Status();
}

size_t BytesWithoutRing(const BatchNormBackwardArgs& args, const DeviceTraits& device) {
  if (internal::TakesInference(args)) return 0;
  const std::optional<size_t> bytes = internal::RowsBytes(args, device);
  return bytes.has_value() ? *bytes : internal::BackwardPassesBytes(args, device);
}

Status EnqueueWithoutRing(const BatchNormBackwardArgs& args, const DeviceTraits& device,
                          Workspace workspace, StreamHandle stream) {
  if (internal::TakesInference(args)) return internal::LaunchInference({&args, 1}, stream);
  if (internal::RowsBytes(args, device).has_value()) {
    return internal::LaunchRows(args, device, workspace, stream);
  }
  return internal::BackwardPasses(args, device, workspace, stream);
}

bool Recomputes(const BatchNormBackwardArgs& args) { return args.rstd == nullptr; }

size_t RunBytes(std::span<const BatchNormBackwardArgs> segments, const DeviceTraits& device) {
  const BatchNormBackwardArgs& first = segments.front();
  const std::optional<RingPlan> ring = PlanRing(first, device);
  if (!ring.has_value()) {
    size_t bytes = 0;
    for (const BatchNormBackwardArgs& args : segments) {
      bytes = std::max(bytes, BytesWithoutRing(args, device));
    }
    return bytes;
  }
  WorkspaceLayout layout(nullptr);
  TakePublished(layout, *ring, segments.size());
  if (std::any_of(segments.begin(), segments.end(), Recomputes)) {
    layout.TakeBytes(internal::BackwardPassesBytes(first, device));
  }
  return layout.size_bytes();
}

Status EnqueueRun(std::span<const BatchNormBackwardArgs> segments, const DeviceTraits& device,
                  Workspace workspace, StreamHandle stream) {
  const BatchNormBackwardArgs& first = segments.front();
  const std::optional<RingPlan> ring = PlanRing(first, device);
  if (!ring.has_value()) {
    for (const BatchNormBackwardArgs& args : segments) {
      NORM_RETURN_IF_ERROR(EnqueueWithoutRing(args, device, workspace, stream));
    }
    return Status();
  }
  WorkspaceLayout layout(workspace.data);
  uint64_t* published = TakePublished(layout, *ring, segments.size());
  if (std::none_of(segments.begin(), segments.end(), Recomputes)) {
    return internal::LaunchBackwardRing(*ring, segments, published, stream);
  }
  const size_t statistics_bytes = internal::BackwardPassesBytes(first, device);
  const Workspace statistics = {layout.TakeBytes(statistics_bytes), statistics_bytes};
  for (BatchNormBackwardArgs args : segments) {
    if (Recomputes(args)) {
      internal::BatchStatistics batch;
      NORM_RETURN_IF_ERROR(internal::StatisticsPasses(args, device, statistics, stream, batch));
      args.mean = batch.mean;
      args.rstd = batch.rstd;
    }
    NORM_RETURN_IF_ERROR(internal::LaunchBackwardRing(*ring, {&args, 1}, published, stream));
  }
  return Status();
}

template <typename Args>
size_t SegmentsBytes(std::span<const Args> segments) {
  const Result<DeviceTraits> device = internal::CurrentDeviceTraits();
  if (!device.ok()) return 0;
  size_t bytes = 0;
  while (!segments.empty()) {
    const std::span<const Args> run = segments.first(CountAlike(segments));
    bytes = std::max(bytes, RunBytes(run, device.value()));
    segments = segments.subspan(run.size());
  }
  return bytes;
}

/// The launches follow each other on the stream, so they share the workspace.
template <typename Args>
Status EnqueueSegments(std::span<const Args> segments, Workspace workspace, StreamHandle stream) {
  const Result<DeviceTraits> device = internal::CurrentDeviceTraits();
  NORM_RETURN_IF_ERROR(device.status());
  NORM_RETURN_IF_ERROR(internal::CheckWorkspace(workspace, SegmentsBytes(segments)));
  while (!segments.empty()) {
    const std::span<const Args> run = segments.first(CountAlike(segments));
    NORM_RETURN_IF_ERROR(EnqueueRun(run, device.value(), workspace, stream));
    segments = segments.subspan(run.size());
  }
  return Status();
}

}  // namespace

Status BatchNormForward(const BatchNormForwardArgs& args, Workspace workspace,
                        StreamHandle stream) {
  NORM_RETURN_IF_ERROR(Validate(args));
  return EnqueueSegments(std::span<const BatchNormForwardArgs>(&args, 1), workspace, stream);
}

size_t BatchNormForwardWorkspaceBytes(const BatchNormForwardArgs& args) {
  return SegmentsBytes(std::span<const BatchNormForwardArgs>(&args, 1));
}

Status BatchNormForwardSegments(std::span<const BatchNormForwardArgs> segments, Workspace workspace,
                                StreamHandle stream) {
  NORM_RETURN_IF_ERROR(ValidateSegments(segments));
  return EnqueueSegments(segments, workspace, stream);
}

size_t BatchNormForwardSegmentsWorkspaceBytes(std::span<const BatchNormForwardArgs> segments) {
  return SegmentsBytes(segments);
}

Status BatchNormBackward(const BatchNormBackwardArgs& args, Workspace workspace,
                         StreamHandle stream) {
  NORM_RETURN_IF_ERROR(Validate(args));
  return EnqueueSegments(std::span<const BatchNormBackwardArgs>(&args, 1), workspace, stream);
}

size_t BatchNormBackwardWorkspaceBytes(const BatchNormBackwardArgs& args) {
  return SegmentsBytes(std::span<const BatchNormBackwardArgs>(&args, 1));
}

Status BatchNormBackwardSegments(std::span<const BatchNormBackwardArgs> segments,
                                 Workspace workspace, StreamHandle stream) {
  NORM_RETURN_IF_ERROR(ValidateSegments(segments));
  return EnqueueSegments(segments, workspace, stream);
}

size_t BatchNormBackwardSegmentsWorkspaceBytes(std::span<const BatchNormBackwardArgs> segments) {
  return SegmentsBytes(segments);
}

}  // namespace norm
