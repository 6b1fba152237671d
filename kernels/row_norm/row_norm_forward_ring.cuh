// RMSNorm and LayerNorm forward of long rows, which pass through rings in shared memory: blocks, or
// clusters that divide a row's columns, take one row after another. One warp of a block fetches
// chunks ahead of their use (row_norm_forward_ring_feeder.cuh); the others add up a row while it
// arrives, and normalize the row before, whose statistics had the meantime to travel through the
// cluster. Every thread has the same columns in every row, so weight and bias may wait in its
// registers.
#pragma once

#include <cstdint>

#include "primitives/cluster.cuh"
#include "primitives/packed_granule.cuh"
#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_device.h"
#include "row_norm/row_norm_forward.cuh"
#include "row_norm/row_norm_forward_ring_feeder.cuh"
#include "row_norm/row_norm_forward_ring_parameters.cuh"
#include "row_norm/row_norm_forward_ring_sums.cuh"
#include "row_norm/row_norm_ring_shape.h"

namespace norm_device {

/// What bulk copies cannot: a thread's own granules from any address, by single elements.
template <typename X, int V>
__device__ void CopyUnaligned(const StorageOf<X>* source, uint32_t slot, int granules, int step) {
#pragma unroll 1
  for (int g = 0; g < granules; ++g) {
    StoreShared(slot + g * step * PackedGranule<X, V>::kBytes,
                PackedGranule<X, V>::Load(source + g * step * V, false));
  }
}

/// Adds a thread's granules of a slot to its sums in f64.
template <RowKind kKind, typename X, int V>
__device__ void AddWide(uint32_t slot, int granules, int step, RingSums<kKind, X>& sums) {
#pragma unroll 1
  for (int g = 0; g < granules; ++g) {
    sums.AddWide(LoadShared<X, V>(slot + g * step * PackedGranule<X, V>::kBytes));
  }
}

/// The warps that add rows up and normalize them. kPlain: see RowForwardRingKernel.
template <typename Pair, RowKind kKind, int kRowGranules, int kSlotGranules, bool kPlain>
class RingNormalizer {
 public:
  using X = typename Pair::Activation;
  static constexpr int V = kWideElements<X>;
  static constexpr int kChunks = kRowGranules / kSlotGranules;
  static_assert(kRowGranules % kSlotGranules == 0);

  __device__ RingNormalizer(const RowForwardParams& p, const RingShape& shape,
                            const RingSlots& slots, const RingPlace& place, RingShared& shared,
                            RingPart* parts, uint32_t ring)
      : p_(p),
        slots_(slots),
        shared_(shared),
        parts_(parts),
        rank_(place.rank),
        slot_bytes_(shape.slot_bytes),
        granule_step_(shape.threads),
        x_ring_(ring + threadIdx.x * kGranuleBytes),
        residual_ring_(x_ring_ + slots.x * shape.slot_bytes),
        column_((place.first_granule + static_cast<int>(threadIdx.x)) * V),
        active_(static_cast<int>(threadIdx.x) < shape.threads),
        has_last_(active_ && (kRowGranules - 1) * shape.threads + static_cast<int>(threadIdx.x) <
                                 place.granules),
        parameters_(p, column_, shape.threads * V, active_, has_last_) {}

  __device__ void Run() {
    int64_t row_before = -1;
    bool more = true;
    // The first pass is for no row: it brings the code into the caches while the first row is on its
    // way.
    for (int i = -1; more; ++i) {
      is_rehearsal_ = i < 0;
      int64_t row = -1;
      if (!is_rehearsal_) {
        shared_.x_full[arriving_.slot].Wait(arriving_.parity);
        row = shared_.rows[i % RingShared::kRows];
        more = row >= 0;
      }
      Sums sums;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        if (more) AddUp(chunk, row, sums);
        if (chunk == kChunks - 1 && more) Publish<false>(i & (kRingRows - 1), sums);
        if (row_before >= 0 || is_rehearsal_) {
          if (chunk == 0 && !is_rehearsal_) TakeScalars(i - 1);
          Normalize(chunk, row_before);
        }
      }
      row_before = row;
    }
  }

 private:
  using Sums = RingSums<kKind, X>;
  using Granule = PackedGranule<X, V>;
  static constexpr int kGranuleBytes = 16;

  __device__ bool aligned() const { return kPlain || p_.aligned; }
  __device__ bool Has(int g) const { return g < kRowGranules - 1 ? true : has_last_; }
  __device__ int Columns(int g) const { return g * granule_step_ * V; }
  __device__ uint32_t InSlot(int g) const {
    return static_cast<uint32_t>(g * granule_step_ * kGranuleBytes);
  }
  template <typename Pointer>
  __device__ auto* At(Pointer* tensor, int64_t row) const {
    using Storage = std::conditional_t<std::is_const_v<Pointer>, const StorageOf<X>, StorageOf<X>>;
    return static_cast<Storage*>(tensor) + row * p_.hidden_size + column_;
  }

  /// Adds a chunk of a row to its sums, once it has arrived; with a residual, its sum with that
  /// takes its place.
  __device__ void AddUp(int chunk, int64_t row, Sums& sums) {
    const bool has_residual = !kPlain && p_.residual != nullptr && !is_rehearsal_;
    if (chunk > 0 && !is_rehearsal_) shared_.x_full[arriving_.slot].Wait(arriving_.parity);
    if (has_residual) shared_.residual_full[residual_.slot].Wait(residual_.parity);
    if (active_) {
      const uint32_t x_slot = x_ring_ + arriving_.slot * slot_bytes_;
      const uint32_t residual_slot = residual_ring_ + residual_.slot * slot_bytes_;
      if (!aligned() && !is_rehearsal_) {
        const int granules = chunk < kChunks - 1 || has_last_ ? kSlotGranules : kSlotGranules - 1;
        const int column = Columns(chunk * kSlotGranules);
        CopyUnaligned<X, V>(At(p_.x, row) + column, x_slot, granules, granule_step_);
        if (has_residual) {
          CopyUnaligned<X, V>(At(p_.residual, row) + column, residual_slot, granules,
                              granule_step_);
        }
      }
      Granule x[kSlotGranules];
#pragma unroll
      for (int g = 0; g < kSlotGranules; ++g) {
        if (Has(chunk * kSlotGranules + g)) x[g] = LoadShared<X, V>(x_slot + InSlot(g));
      }
      if (has_residual) {
        StorageOf<X>* const sum = At(p_.residual_sum, row);
#pragma unroll
        for (int g = 0; g < kSlotGranules; ++g) {
          if (Has(chunk * kSlotGranules + g)) {
            x[g] = Sum(x[g], LoadShared<X, V>(residual_slot + InSlot(g)));
            StoreShared(x_slot + InSlot(g), x[g]);
            x[g].Store(sum + Columns(chunk * kSlotGranules + g), aligned());
          }
        }
      }
      if (chunk < kChunks - 1 || has_last_) {
        sums.template Add<kSlotGranules>(x);
      } else {
        sums.template Add<kSlotGranules - 1>(x);
      }
    }
    if (has_residual) {
      Leave(shared_.residual_empty[residual_.slot]);
      residual_.Advance(slots_.residual);
    }
    if (!is_rehearsal_) arriving_.Advance(slots_.x);
  }

  template <bool kWide>
  __device__ void Publish(int buffer, Sums& sums) {
    const int blocks = ClusterBlocks();
    const int warps = static_cast<int>(blockDim.x) / kWarpThreads - 1;
    const int part =
        (buffer * blocks + rank_) * warps + static_cast<int>(threadIdx.x) / kWarpThreads;
    sums.template Publish<kWide>(parts_ + part, shared_.arrived[buffer],
                                 is_rehearsal_ ? 0 : blocks);
  }

  /// Lets the feeder use a slot again.
  __device__ void Leave(TransferBarrier& empty) const {
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) empty.Arrive();
  }

  __device__ void TakeScalars(int i) {
    shared_.ready[i % 2].Wait(i / 2 & 1);
    scalars_ = shared_.scalars[i % 2];
    if (scalars_.leaves_f32 == 0) return;
    Sums sums;
    if (active_) {
#pragma unroll 1
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int granules = chunk < kChunks - 1 || has_last_ ? kSlotGranules : kSlotGranules - 1;
        const int slot = leaving_.slot + chunk;
        AddWide<kKind, X, V>(x_ring_ + (slot < slots_.x ? slot : slot - slots_.x) * slot_bytes_,
                             granules, granule_step_, sums);
      }
    }
    Publish<true>(kRingRows + retakes_ % kRingRetakes, sums);
    shared_.ready_again.Wait(retakes_ & 1);
    ++retakes_;
    scalars_ = shared_.scalars[i % 2];
  }

  __device__ void Normalize(int chunk, int64_t row) {
    Granule x[kSlotGranules];
    if (active_) {
      const uint32_t slot = x_ring_ + leaving_.slot * slot_bytes_;
#pragma unroll
      for (int g = 0; g < kSlotGranules; ++g) {
        if (Has(chunk * kSlotGranules + g)) x[g] = LoadShared<X, V>(slot + InSlot(g));
      }
    }
    if (!is_rehearsal_) {
      if (!kPlain) FenceBeforeBulkCopies();
      Leave(shared_.x_empty[leaving_.slot]);
      leaving_.Advance(slots_.x);
    }
    if (!active_) return;
    StorageOf<X>* const y_row = At(p_.y, row);
#pragma unroll
    for (int g = 0; g < kSlotGranules; ++g) {
      const int of_row = chunk * kSlotGranules + g;
      if (Has(of_row)) {
        float y[V];
#pragma unroll
        for (int i = 0; i < V; ++i) {
          y[i] = kKind == RowKind::kLayer
                     ? fmaf(x[g].Wide(i) - scalars_.mean, scalars_.rstd, scalars_.correction)
                     : x[g].Wide(i) * scalars_.rstd;
        }
        if constexpr (sizeof(StorageOf<X>) < sizeof(float)) {
          if (!kPlain && p_.round_normalized) {
            const Granule first = Granule::Rounded(y);
#pragma unroll
            for (int i = 0; i < V; ++i) y[i] = first.Wide(i);
          }
        }
        parameters_.Apply(of_row, granule_step_ * V, y);
        const Granule rounded = Granule::Rounded(y);
        if (!is_rehearsal_) rounded.Store(y_row + Columns(of_row), aligned());
      }
    }
  }

  const RowForwardParams& p_;
  const RingSlots& slots_;
  RingShared& shared_;
  RingPart* parts_;
  int rank_;
  int slot_bytes_;
  int granule_step_;
  uint32_t x_ring_;  // this thread's first granule
  uint32_t residual_ring_;
  int column_;
  bool active_;    // the last warp may have more lanes than there is work for
  bool has_last_;  // this thread has all kRowGranules granules; one fewer otherwise
  RingParameters<Pair, kKind, V, kRowGranules> parameters_;
  RingCursor arriving_;
  RingCursor residual_;
  RingCursor leaving_;
  RingScalars scalars_ = {};
  int retakes_ = 0;
  bool is_rehearsal_ = false;
};

/// What a launch says of a block's work.
template <RowLaunchKind kLaunch>
struct RingLaunch : RowLaunchParams<kLaunch> {
  using Base = RowLaunchParams<kLaunch>;

  const RowForwardParams& request;
  RingShape shape;
  RingSlots slots;
  RingClaims claims = {nullptr, 0};
  int cluster;
  int clusters;

  __device__ RingLaunch(const typename Base::Type& table, RingGranules granules,
                        int granule_elements)
      : RingLaunch(table, granules, granule_elements, 0, static_cast<int>(gridDim.x)) {}

 private:
  __device__ RingLaunch(const typename Base::Type& table, RingGranules granules,
                        int granule_elements, int first_block, int blocks)
      : request(Base::Request(table, static_cast<int>(blockIdx.x), first_block, blocks)),
        shape(granules, static_cast<int>(request.hidden_size) / granule_elements, ClusterBlocks()),
        slots(granules, shape.Slots(static_cast<int>(DynamicSharedBytes())),
              request.residual != nullptr),
        cluster((static_cast<int>(blockIdx.x) - first_block) / shape.blocks),
        clusters(blocks / shape.blocks) {}
};

template <>
struct RingLaunch<RowLaunchKind::kSingle> {
  using Type = RowRingParams;

  const RowForwardParams& request;
  const RingShape& shape;
  const RingSlots& slots;
  RingClaims claims;
  int cluster;
  int clusters;

  __device__ RingLaunch(const Type& params, RingGranules, int)
      : request(params.request),
        shape(params.shape),
        slots(params.slots),
        claims{params.claims, params.claim_tag},
        cluster(ClusterIndex()),
        clusters(ClusterCount()) {}
};

template <bool kLong>
inline constexpr RingGranules kGranulesOf = kLong ? kLongRingGranules : kShortRingGranules;

template <RowLaunchKind kLaunch, typename Pair, RowKind kKind, bool kLong, bool kPlain>
__global__ void __launch_bounds__(kGranulesOf<kLong>.max_threads + kRingFeederThreads, 1)
    RowForwardRing(const __grid_constant__ typename RingLaunch<kLaunch>::Type params) {
#if __CUDA_ARCH__ >= 900
  using X = typename Pair::Activation;
  constexpr RingGranules kGranules = kGranulesOf<kLong>;
  using Normalizer = RingNormalizer<Pair, kKind, kGranules.of_row, kGranules.of_slot, kPlain>;
  extern __shared__ __align__(128) char dynamic_shared[];
  __shared__ RingShared shared;
  const RingLaunch<kLaunch> launch(params, kGranules, Normalizer::V);
  const RowForwardParams& p = launch.request;
  const RingShape& shape = launch.shape;
  RingPlace place;
  place.rank = ClusterRank();
  place.cluster = launch.cluster;
  place.clusters = launch.clusters;
  place.first_granule = shape.FirstGranule(place.rank);
  place.granules = shape.FirstGranule(place.rank + 1) - place.first_granule;
  auto* const parts = reinterpret_cast<RingPart*>(dynamic_shared);
  const uint32_t ring =
      static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared)) + shape.part_bytes;

  if (static_cast<int>(threadIdx.x) / kWarpThreads == shape.warps) {
    RingFeeder<kKind, X, Normalizer::kChunks> feeder(p, launch.claims, shape, launch.slots, place,
                                                     shared, parts, ring);
    feeder.Start();
    __syncwarp();
    ClusterArrive();
    ClusterWait();
    feeder.Run();
  } else {
    shared.Init(static_cast<int>(threadIdx.x), shape.warps);
    __syncwarp();
    ClusterArrive();
    Normalizer normalizer(p, shape, launch.slots, place, shared, parts, ring);
    // Nobody may write to a peer's shared memory before the peer has started.
    __syncwarp();
    ClusterWait();
    normalizer.Run();
  }
  // A peer may still send to this block. Lanes part where some have no work, and all of a warp must
  // come to the cluster's barrier together.
  __syncwarp();
  ClusterArrive();
  ClusterWait();
#endif
}

}  // namespace norm_device
