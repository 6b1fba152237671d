// One batch on its way through a slot of a GPU, with the memory that the device may be using.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "norm/kernels/status.h"
#include "server/device/batch_layout.h"
#include "server/device/buffer_pool.h"
#include "server/device/cuda_slot.h"
#include "server/device/gather_plan.h"
#include "server/device/host_copier.h"
#include "server/device/kernel_args.h"
#include "server/device/row_slices.h"

namespace norm::server {

/// Sizes at which a batch takes another way. The defaults were measured on an H200
/// (tests/unit/server/device/engine_bench.cc).
struct CudaWays {
  // Batches whose inputs and outputs take at most this are computed in mapped pinned memory: one
  // launch, no copies: 30 us instead of 44 for [4, 4096] bf16. Blocks each read the parameters
  // over the bus, so that more rows take longer than with a copy. Not with page-locked inputs.
  int64_t mapped_bytes = int64_t{128} << 10;
  // Up to this kernels read a copy in device memory, and still write the results to pinned memory:
  // two commands on one stream, 54 us instead of 63 for [16, 4096] bf16.
  int64_t mapped_output_bytes = int64_t{1} << 20;
  // Page-locked inputs of at least this are copied to the device from where they lie, which may be
  // many runs; smaller ones are sooner gathered.
  int64_t direct_bytes = int64_t{64} << 10;
  // Mergeable problems of at least this that have the device to themselves are computed in slices
  // of slice_bytes (inputs and outputs), so that the copy out of one runs beside the copy in of the
  // next. Beside other batches that happens anyway, and whole copies are faster.
  int64_t sliced_bytes = int64_t{16} << 20;
  int64_t slice_bytes = int64_t{8} << 20;
};

/// What the flights of a device share.
struct CudaFlightResources {
  BufferPool& pinned;
  BufferPool& device;
  HostCopier& copier;
  CudaWays ways;
};

/// Use:       Prepare, LeaseDeviceMemory, Enqueue, then IsDone until it says so, Finish, Release; after
///            an error or exception of any of them Synchronize and Release, but after one of the
///            first two Prepare may come again. Scratch memory is kept for the next batch.
/// Threads:   one at a time; the slot's device must be current.
class CudaFlight {
 public:
  CudaFlight(CudaSlot slot, const CudaFlightResources& resources)
      : slot_(std::move(slot)), resources_(resources) {}

  /// Lays the batch out and leases its pinned memory, but for what its job brings.
  /// RESOURCE_EXHAUSTED or UNAVAILABLE as the pool says. `alone`: whether no other batch is in
  /// flight. `mode`: of all its leases.
  absl::Status Prepare(const Batch& batch, bool alone, LeaseMode mode);
  /// After Prepare: all that it needs or, with the errors of the pool or an exception, none. May be
  /// tried again.
  absl::Status LeaseDeviceMemory();
  /// Everything up to the last copy out; the batch's inputs are no longer needed on return, but
  /// for page-locked ones.
  Status Enqueue(const Batch& batch);
  Result<bool> IsDone() const { return slot_.IsDone(); }
  /// Fills the results of a batch that is done, and says where its time went.
  Result<BatchTimes> Finish(Batch& batch);
  /// Waits for whatever was enqueued.
  Status Synchronize() const { return slot_.Synchronize(); }
  /// Returns the memory to its pools; results keep theirs.
  void Release();

  const BatchLayout& layout() const { return layout_; }

 private:
  enum class Way : uint8_t { kMapped, kMappedOutput, kStaged };

  absl::Status Lease(BufferPool& pool, int64_t bytes, std::shared_ptr<std::byte>& lease) const;
  absl::Status LeaseWorkspace();
  void ReleaseDeviceMemory();
  bool sliced() const { return slices_.count > 1; }
  bool copies_in() const { return way_ != Way::kMapped; }
  bool copies_out() const { return way_ == Way::kStaged; }
  Status EnqueueMapped(const Batch& batch);
  Status EnqueueStaged(const Batch& batch);
  Status CopyIn(absl::Span<const CopyPiece> pieces);
  Status RunKernel();
  Status RunSlice(int slice);
  /// `segment` moved to the start of a slice.
  TensorPointers PointToSlice(int slice) const;

  CudaSlot slot_;
  CudaCopyList copies_;
  const CudaFlightResources resources_;
  BatchLayout layout_;
  GatherPlan plan_;
  KernelCall call_;
  RowSlices slices_;
  Way way_ = Way::kStaged;
  LeaseMode mode_ = LeaseMode::kAllocates;
  bool alone_ = false;
  size_t workspace_bytes_ = 0;
  std::shared_ptr<std::byte> pinned_input_;
  std::shared_ptr<std::byte> pinned_output_;
  std::shared_ptr<std::byte> device_input_;
  std::shared_ptr<std::byte> device_output_;
  std::shared_ptr<std::byte> device_workspace_;
};

}  // namespace norm::server
