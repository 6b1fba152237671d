#include "server/device/cuda_flight.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "norm/cuda/profile_range.h"
#include "server/device/cuda_kernel_call.h"

namespace norm::server {
namespace {

// Gathered bytes that are worth a copy of their own: 512 KiB take 20 to 50 us to gather and 10 to
// copy, against 3 to enqueue; but larger copies are faster, so that large batches have larger ones.
constexpr int64_t kMinCopyChunkBytes = int64_t{512} << 10;
constexpr int64_t kMaxCopyChunkBytes = int64_t{2} << 20;

bool MaySlice(const BatchLayout& layout, const CudaWays& ways) {
  return layout.segments.size() == 1 && IsRowMergeable(layout.segments[0].problem) &&
         layout.problem_bytes() >= ways.sliced_bytes;
}

/// How many bytes a page-locked input must have to stay where it is. What a job brings along always
/// does; others not where kernels read the slab that they are gathered in.
int64_t DirectBytes(const Batch& batch, const CudaWays& ways) {
  if (BroughtMemory(batch) != nullptr) {
    return 0;
  }
  return BytesUpTo(batch, ways.mapped_bytes) <= ways.mapped_bytes ? kGatherAll : ways.direct_bytes;
}

}  // namespace

absl::Status CudaFlight::Lease(BufferPool& pool, int64_t bytes,
                               std::shared_ptr<std::byte>& lease) const {
  auto leased = pool.Lease(bytes, mode_);
  if (!leased.ok()) {
    return leased.status();
  }
  lease = *std::move(leased);
  return absl::OkStatus();
}

absl::Status CudaFlight::Prepare(const Batch& batch, bool alone, LeaseMode mode) {
  Release();
  mode_ = mode;
  alone_ = alone;
  MakeBatchLayout(batch, DirectBytes(batch, resources_.ways), layout_);
  const int64_t bytes = layout_.input_bytes + layout_.output_bytes;
  // Mapped memory is one slab: page-locked inputs, which lie elsewhere, are for the copy engine.
  const bool gathers_all = layout_.gathered_bytes == layout_.input_bytes;
  way_ = bytes <= resources_.ways.mapped_bytes && gathers_all ? Way::kMapped
         : bytes <= resources_.ways.mapped_output_bytes       ? Way::kMappedOutput
                                                              : Way::kStaged;
  slices_ = alone && way_ == Way::kStaged && MaySlice(layout_, resources_.ways)
                ? PlanRowSlices(layout_.segments[0].problem, resources_.ways.slice_bytes,
                                CudaSlot::kMaxSlices)
                : RowSlices();
  const int64_t gathered_bytes = copies_in() ? layout_.gathered_bytes : layout_.input_bytes;
  if (const JobMemory* brought = BroughtMemory(batch); brought != nullptr) {
    pinned_output_ = brought->outputs;
    if (gathered_bytes == 0) {
      pinned_input_ = brought->inputs;
    }
  }
  absl::Status status;
  if (pinned_input_ == nullptr) {
    status = Lease(resources_.pinned, gathered_bytes, pinned_input_);
  }
  if (status.ok() && pinned_output_ == nullptr) {
    status = Lease(resources_.pinned, layout_.output_bytes, pinned_output_);
  }
  return status;
}

absl::Status CudaFlight::LeaseDeviceMemory() {
  absl::Cleanup release = [this] { ReleaseDeviceMemory(); };
  absl::Status status;
  if (copies_in()) {
    status = Lease(resources_.device, layout_.input_bytes, device_input_);
  }
  if (status.ok() && copies_out()) {
    status = Lease(resources_.device, layout_.output_bytes, device_output_);
  }
  if (status.ok()) {
    // Unified addressing: kernels use the host's own address of pinned memory.
    AddSegments(copies_in() ? device_input_.get() : pinned_input_.get(),
                copies_out() ? device_output_.get() : pinned_output_.get(), layout_, call_);
    status = LeaseWorkspace();
  }
  if (status.ok()) {
    std::move(release).Cancel();
  }
  return status;
}

absl::Status CudaFlight::LeaseWorkspace() {
  workspace_bytes_ = 0;
  if (!sliced() && !call_.empty()) {
    workspace_bytes_ = CudaWorkspaceBytes(call_);
  } else if (!call_.empty()) {
    // The kernels of slices follow each other on one stream. All but the last are of one size.
    for (const int slice : {0, slices_.count - 1}) {
      call_.Clear();
      (void)call_.Add(SliceOf(layout_.segments[0].problem, slices_, slice), PointToSlice(slice));
      workspace_bytes_ = std::max(workspace_bytes_, CudaWorkspaceBytes(call_));
    }
  }
  return workspace_bytes_ == 0
             ? absl::OkStatus()
             : Lease(resources_.device, static_cast<int64_t>(workspace_bytes_), device_workspace_);
}

Status CudaFlight::Enqueue(const Batch& batch) {
  return way_ == Way::kStaged ? EnqueueStaged(batch) : EnqueueMapped(batch);
}

Status CudaFlight::EnqueueMapped(const Batch& batch) {
  GatherOptions options;
  options.direct = copies_in();
  PlanGather(batch, layout_, options, plan_);
  {
    const cuda::ProfileRange range("gather");
    resources_.copier.Gather(plan_, pinned_input_.get(), [](size_t) {});
  }
  // Two events with a time cost a lone small batch 5 us, of 24 in all.
  NORM_RETURN_IF_ERROR(slot_.BeginMapped(alone_ && !copies_in() ? CudaSlot::MappedTimes::kClock
                                                                : CudaSlot::MappedTimes::kEvents));
  if (copies_in()) {
    NORM_RETURN_IF_ERROR(CopyIn(plan_.ChunkPieces(0)));
  }
  NORM_RETURN_IF_ERROR(slot_.BeginMappedKernel());
  NORM_RETURN_IF_ERROR(RunKernel());
  return slot_.EndMapped();
}

Status CudaFlight::EnqueueStaged(const Batch& batch) {
  GatherOptions options;
  if (layout_.gathered_bytes >= kMinCopyChunkBytes) {
    options.chunk_bytes =
        std::clamp(layout_.input_bytes / 4, kMinCopyChunkBytes, kMaxCopyChunkBytes);
  }
  options.slices = sliced() ? &slices_ : nullptr;
  options.direct = true;
  PlanGather(batch, layout_, options, plan_);
  NORM_RETURN_IF_ERROR(slot_.Begin());
  Status status;
  {
    const cuda::ProfileRange range("gather");
    resources_.copier.Gather(plan_, pinned_input_.get(), [&](size_t chunk) {
      if (status.ok()) {
        status = CopyIn(plan_.ChunkPieces(chunk));
      }
      if (status.ok() && sliced()) {
        status = RunSlice(static_cast<int>(chunk));
      }
    });
  }
  NORM_RETURN_IF_ERROR(status);
  if (!sliced()) {
    NORM_RETURN_IF_ERROR(slot_.BeginKernel());
    NORM_RETURN_IF_ERROR(RunKernel());
    NORM_RETURN_IF_ERROR(slot_.EndKernel());
    const cuda::ProfileRange range("copy_out");
    NORM_RETURN_IF_ERROR(slot_.CopyOut(pinned_output_.get(), device_output_.get(),
                                       static_cast<size_t>(layout_.output_bytes)));
  }
  return slot_.End();
}

/// Pieces that lie end to end, up to the padding between tensors, go as one copy.
Status CudaFlight::CopyIn(absl::Span<const CopyPiece> pieces) {
  const cuda::ProfileRange range("copy_in");
  copies_.Clear();
  const std::byte* from = nullptr;
  int64_t start = 0;
  int64_t end = 0;
  bool direct = false;
  const auto add = [&] {
    copies_.Add(device_input_.get() + start, from, static_cast<size_t>(end - start));
  };
  for (const CopyPiece& piece : pieces) {
    const bool follows = piece.direct == direct &&
                         (direct ? piece.to == end && piece.from.data() == from + (end - start)
                                 : piece.to - end < kSlabAlignment);
    if (!follows || from == nullptr) {
      add();
      start = piece.to;
      direct = piece.direct;
      from = direct ? piece.from.data() : pinned_input_.get() + start;
    }
    end = piece.to + static_cast<int64_t>(piece.from.size());
  }
  add();
  return way_ == Way::kStaged ? slot_.CopyIn(copies_) : slot_.CopyInMapped(copies_);
}

Status CudaFlight::RunKernel() {
  const cuda::ProfileRange range("kernel");
  return call_.empty()
             ? Status()
             : EnqueueOnCuda(call_, {device_workspace_.get(), workspace_bytes_}, slot_.compute());
}

Status CudaFlight::RunSlice(int slice) {
  const BatchSegment& segment = layout_.segments[0];
  const NormProblem problem = SliceOf(segment.problem, slices_, slice);
  call_.Clear();
  if (segment.status.ok()) {
    NORM_RETURN_IF_ERROR(call_.Add(problem, PointToSlice(slice)));
  }
  NORM_RETURN_IF_ERROR(slot_.BeginKernel());
  NORM_RETURN_IF_ERROR(RunKernel());
  NORM_RETURN_IF_ERROR(slot_.EndKernel());
  const cuda::ProfileRange range("copy_out");
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (problem.outputs.Has(role)) {
      const int64_t at =
          segment.outputs[i].offset + SliceOffset(segment.problem, slices_, slice, role);
      NORM_RETURN_IF_ERROR(slot_.CopyOut(pinned_output_.get() + at, device_output_.get() + at,
                                         static_cast<size_t>(TensorBytes(problem, role))));
    }
  }
  return Status();
}

TensorPointers CudaFlight::PointToSlice(int slice) const {
  const BatchSegment& segment = layout_.segments[0];
  TensorPointers at = PointInto(segment, device_input_.get(), device_output_.get());
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (IsParameter(role)) {
      continue;
    }
    const int64_t offset = SliceOffset(segment.problem, slices_, slice, role);
    if (at.inputs[i] != nullptr) {
      at.inputs[i] = static_cast<const std::byte*>(at.inputs[i]) + offset;
    }
    if (at.outputs[i] != nullptr) {
      at.outputs[i] = static_cast<std::byte*>(at.outputs[i]) + offset;
    }
  }
  return at;
}

Result<BatchTimes> CudaFlight::Finish(Batch& batch) {
  Result<BatchTimes> times = slot_.Times();
  if (times.ok()) {
    FillResults(layout_, pinned_output_, batch);
  }
  return times;
}

void CudaFlight::ReleaseDeviceMemory() {
  for (auto* lease : {&device_input_, &device_output_, &device_workspace_}) {
    lease->reset();
  }
}

void CudaFlight::Release() {
  pinned_input_.reset();
  pinned_output_.reset();
  ReleaseDeviceMemory();
}

}  // namespace norm::server
