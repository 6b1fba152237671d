// A thread's part of rows whose y is quantized: which columns it has, and how x, weight and bias of
// them arrive.
#pragma once

#include <cstdint>

#include "primitives/packed_granule.cuh"
#include "primitives/row_owner.cuh"
#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_quantized_device.h"

namespace norm_device {

/// The columns of a thread: granules of V elements at a fixed distance. Pair, kKind, Owner: as of the
/// kernel; kElements: that a thread holds.
template <typename Pair, RowKind kKind, typename Owner, int kElements>
class QuantizedColumns {
 public:
  using X = typename Pair::Activation;
  using W = typename Pair::Weight;
  static constexpr int V = kWideElements<X>;
  static constexpr int kGranules = kElements / V;
  static constexpr int kStep = Owner::kGranuleStep * V;
  using Granule = PackedGranule<X, V>;
  using Weights = PackedGranule<W, V>;
  /// Whose weights are fetched together, so that their latencies overlap: 16 registers.
  static constexpr int kMostTogether = 16 / (Weights::kWords * (kKind == RowKind::kRms ? 1 : 2));
  static constexpr int kTogether = kMostTogether < 1           ? 1
                                   : kMostTogether < kGranules ? kMostTogether
                                                               : kGranules;
  static_assert(kGranules % kTogether == 0);

  struct Affine {
    Weights weight[kTogether];
    Weights bias[kTogether];
  };

  __device__ QuantizedColumns(const RowForwardParams& p, const Owner& owner)
      : first_(owner.template FirstGranule<kGranules>() * V),
        count_(static_cast<int>(p.hidden_size) - first_),
        weight_(static_cast<const StorageOf<W>*>(p.weight) + first_),
        bias_(static_cast<const StorageOf<W>*>(p.bias) + first_) {
    // Addresses in registers, not one computation from the parameters per granule.
    asm volatile("" : "+l"(weight_), "+l"(bias_));
  }

  __device__ int first() const { return first_; }
  __device__ bool Holds(int g) const { return g * kStep < count_; }

  /// Weight and bias of the granules from `from` on, of a request that has both (kRms: weight) at
  /// aligned addresses. Anything past the row's end.
  __device__ void Fetch(int from, Affine& to) const {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int g = from + i;
      to.weight[i] = Weights::LoadConstant(weight_ + g * kStep, true);
      if (kKind == RowKind::kLayer) to.bias[i] = Weights::LoadConstant(bias_ + g * kStep, true);
    }
  }

  /// As Fetch, of any request: ones and zeros where they are absent or past the row's end.
  __device__ void FetchAny(const RowForwardParams& p, int from, Affine& to) const {
    if (p.aligned) {
      FetchAny<true>(p, from, to.weight, to.bias);
    } else {
      FetchAny<false>(p, from, to.weight, to.bias);
    }
  }

  /// Of one granule.
  __device__ void FetchAny(const RowForwardParams& p, int g, Weights& weight, Weights& bias) const {
    Weights weights[1];
    Weights biases[1];
    if (p.aligned) {
      FetchAny<true>(p, g, weights, biases);
    } else {
      FetchAny<false>(p, g, weights, biases);
    }
    weight = weights[0];
    bias = biases[0];
  }

 private:
  template <bool kAligned, int kCount>
  __device__ void FetchAny(const RowForwardParams& p, int from, Weights (&weight)[kCount],
                           Weights (&bias)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      weight[i] = Weights::Filled(1);
      bias[i] = Weights::Filled(0);
      const int place = (from + i) * kStep;
      if (p.weight != nullptr && Holds(from + i)) {
        weight[i] = Weights::LoadConstant(weight_ + place, kAligned);
      }
      if (kKind == RowKind::kLayer && p.bias != nullptr && Holds(from + i)) {
        bias[i] = Weights::LoadConstant(bias_ + place, kAligned);
      }
    }
  }

  int first_;
  int count_;  // columns from there to the row's end
  const StorageOf<W>* weight_;
  const StorageOf<W>* bias_;
};

/// Bulk copies of x into shared memory, a row per slot: the next row of its threads arrives while
/// this one is in use. Slots end in zeros where rows do.
template <typename Columns, typename Owner>
class RowFeed {
 public:
#if __CUDA_ARCH__ >= 900
  static constexpr bool kExists = true;
#else
  static constexpr bool kExists = false;
#endif
  using X = typename Columns::X;
  using Granule = typename Columns::Granule;
  static constexpr int kLanes = Owner::kLanesPerRow;
  static constexpr int kRowsPerWarp = kWarpThreads / kLanes;
  static constexpr int kLaneBytes = Columns::kGranules * 16;

  /// `slots`: kLaneBytes per thread. By all threads.
  __device__ RowFeed(const RowForwardParams& p, uint8_t* slots, TransferBarrier* barriers)
      : p_(p),
        slot_(SharedAddress(slots) + RowThread() * kLaneBytes),
        arrived_(barriers[Owner::kWholeBlock ? 0 : Warp()]) {
    if (IsStarter()) {
      arrived_.Init(1);
      TransferBarrier::FenceInit();
    }
    if (kExists) ZeroEnd();
    __syncthreads();
  }

  /// Of this thread's row, if there is one. The threads of the row (their warp, if they are fewer)
  /// call it together, when none of them uses the slot.
  __device__ void Start(int64_t row) const {
    if (threadIdx.x % kLanes != 0 || (Owner::kWholeBlock && threadIdx.x != 0)) return;
    const int bytes = row_bytes();
    if (IsStarter() && row < p_.rows) {
      const int rows = static_cast<int>(min(int64_t{kRowsPerWarp}, p_.rows - row));
      arrived_.ArriveExpecting(bytes * rows);
    }
    if (row < p_.rows) {
      StartBulkCopy(slot_, static_cast<const uint8_t*>(p_.x) + row * bytes, bytes, arrived_);
    }
  }

  /// For what Start began for the row.
  __device__ void Wait(int64_t row) {
    const int place = static_cast<int>(threadIdx.x % kWarpThreads) / kLanes;  // in the warp
    if (!Owner::kWholeBlock && row - place >= p_.rows) return;
    arrived_.Wait(parity_);
    parity_ ^= 1;
  }

  /// x; zeros past the row's end.
  __device__ void Take(Granule (&x)[Columns::kGranules]) const {
    const uint32_t place = slot_ + ThreadPlace();
#pragma unroll
    for (int g = 0; g < Columns::kGranules; ++g) {
      x[g] = LoadShared<X, Columns::V>(place + g * Owner::kGranuleStep * 16);
    }
  }

 private:
  static __device__ int Warp() { return static_cast<int>(threadIdx.x / kWarpThreads); }
  static __device__ bool IsStarter() {
    return Owner::kWholeBlock ? threadIdx.x == 0 : threadIdx.x % kWarpThreads == 0;
  }
  /// The first thread of this thread's row.
  static __device__ uint32_t RowThread() {
    return Owner::kWholeBlock ? 0 : threadIdx.x / kLanes * kLanes;
  }
  /// Of its first granule.
  static __device__ uint32_t ThreadPlace() {
    if (Owner::kWholeBlock) return Warp() * kWarpThreads * kLaneBytes + threadIdx.x % kLanes * 16;
    return threadIdx.x % kLanes * 16;
  }
  static __device__ uint32_t SharedAddress(const void* place) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(place));
  }
  __device__ int row_bytes() const {
    return static_cast<int>(p_.hidden_size) * static_cast<int>(sizeof(StorageOf<X>));
  }
  __device__ void ZeroEnd() const {
#pragma unroll 1
    for (int g = 0; g < Columns::kGranules; ++g) {
      const uint32_t place = ThreadPlace() + g * Owner::kGranuleStep * 16;
      if (static_cast<int>(place) >= row_bytes()) StoreShared(slot_ + place, Granule::Zero());
    }
  }

  const RowForwardParams& p_;
  uint32_t slot_;
  TransferBarrier& arrived_;
  uint32_t parity_ = 0;
};

}  // namespace norm_device
