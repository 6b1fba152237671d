// Row backward of long rows: persistent blocks, or clusters that divide a row's columns, take one
// row after another. One warp of a block fetches chunks of the tensors of rows ahead of their use;
// the others add up a row while it arrives, and give the gradient of a row before, whose sums had
// the meantime to travel through the cluster. Every thread has the same columns in every row: the
// weight, and the sums of dweight and dbias, stay in its registers.
#pragma once

#include <cstdint>

#include "primitives/cluster.cuh"
#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_backward_long_careful.cuh"
#include "row_norm/row_norm_backward_long_columns.cuh"
#include "row_norm/row_norm_backward_long_exchange.cuh"
#include "row_norm/row_norm_backward_long_ring.cuh"
#include "row_norm/row_norm_backward_overlap.cuh"
#include "row_norm/row_norm_backward_ring.cuh"

namespace norm_device {

/// The warps that compute. kPlain: pointers are aligned and there is no dresidual_sum.
template <typename X, RowKind kKind, int kGranules, LongScale kScale, bool kPlain>
class LongRows {
 public:
  static constexpr int V = kWideElements<X>;
  static constexpr bool kLayer = kKind == RowKind::kLayer;
  /// Rows of f32 are always centred: the mean's own rounding shows there.
  static constexpr bool kAlwaysCentred = kLayer && sizeof(StorageOf<X>) == sizeof(float);
  using Columns = LongColumns<X, kKind, kGranules, kScale>;
  using Packed = PackedGranule<X, V>;

  __device__ LongRows(const RingBackwardParams& p, const LongPlace& place, LongShared& shared,
                      const LongExchange<kKind>& exchange, const LongCarefulExchange& careful,
                      uint32_t ring)
      : p_(p),
        place_(place),
        shared_(shared),
        exchange_(exchange),
        careful_(careful),
        ring_(ring + threadIdx.x * kPieceBytes),
        share_(1.0F / static_cast<float>(p.hidden_size)),
        column_((place.first_granule + static_cast<int>(threadIdx.x)) * V),
        active_(static_cast<int>(threadIdx.x) < place.threads),
        has_last_(active_ &&
                  (kGranules - 1) * place.threads + static_cast<int>(threadIdx.x) < place.granules),
        is_first_lane_(threadIdx.x % kWarpThreads == 0),
        full_(shared.full[0].Address()),
        empty_(shared.empty[0].Address()),
        dx_(static_cast<StorageOf<X>*>(p.dx) + RowOffset(0)) {
    // Held in registers, not computed again.
    asm volatile("" : "+r"(full_), "+r"(empty_));
  }

  /// `weights`: places in shared memory.
  __device__ void LoadWeight(uint32_t weights) {
    columns_.LoadWeight(p_, column_, chunk_columns(), active_, has_last_,
                        weights + threadIdx.x * kPieceBytes, p_.tensor_bytes);
  }

  __device__ void Run() {
    const int rows = place_.rows;
#pragma unroll 1
    for (int i = 0; i <= rows; ++i) {
      RowTotals<float> sums[2];
#pragma unroll
      for (int chunk = 0; chunk < kGranules; ++chunk) {
        if (i < rows) {
          AddUp(i, chunk, sums);
          if (chunk == kGranules - 1) {
            exchange_.Send({sums[0].gd + sums[1].gd, sums[0].g + sums[1].g, sums[0].d + sums[1].d},
                           centred_, i % Exchange::kTurns);
          }
        }
        if (i > 0) {
          if (chunk == 0) Take(i - 1);
          Output(chunk);
          if (chunk == kGranules - 1) {
            dx_ += p_.row_blocks * p_.hidden_size;
            if (__builtin_expect(i == (partial_ + 1) * p_.partial_stages, 0)) StoreSums();
          }
        }
      }
    }
    // The last rows, and the partial rows of clusters with fewer rows than others.
#pragma unroll 1
    while (partial_ < p_.block_partials) StoreSums();
  }

 private:
  using Exchange = LongExchange<kKind>;
  static constexpr int kBarrierBytes = sizeof(TransferBarrier);

  __device__ int chunk_columns() const {
    return p_.tensor_bytes / static_cast<int>(sizeof(StorageOf<X>));
  }
  __device__ bool Has(int g) const { return g < kGranules - 1 ? active_ : has_last_; }
  __device__ uint32_t Slot(int slot) const {
    return ring_ + slot * (p_.ring_tensors * p_.tensor_bytes);
  }
  __device__ Packed Load(int slot, int tensor) const {
    return LoadShared<X, V>(Slot(slot) + tensor * p_.tensor_bytes);
  }
  __device__ int64_t RowOffset(int row) const {
    return (place_.cluster + row * p_.row_blocks) * p_.hidden_size + column_;
  }
  __device__ GivenStats Stats(int row) const {
    const float2 stats = shared_.stats[row % LongShared::kRows];
    return {stats.y, stats.x};
  }

  __device__ void AddUp(int row, int chunk, RowTotals<float> (&sums)[2]) {
    WaitForBarrier(full_ + arriving_.slot * kBarrierBytes, arriving_.parity);
    if (chunk == 0) {
      const GivenStats stats = Stats(row);
      mean_ = stats.mean;
      centred_ = kAlwaysCentred || (kLayer && MeanNeedsCorrection(stats));
    }
    if (Has(chunk)) {
      if (!kPlain && p_.has_edges) CopyUnaligned(RowOffset(row) + chunk * chunk_columns());
      const Packed x = Load(arriving_.slot, 0);
      const Packed dy = Load(arriving_.slot, 1);
      if (kAlwaysCentred || (kLayer && __builtin_expect(centred_, 0))) {
        columns_.template AddUp<kLayer>(chunk, x, dy, mean_, sums);
      } else {
        columns_.template AddUp<false>(chunk, x, dy, mean_, sums);
      }
    }
    arriving_.Advance(p_.stages);
  }

  /// What bulk copies cannot: this thread's own granules, by single elements.
  __device__ void CopyUnaligned(int64_t offset) const {
#pragma unroll 1
    for (int tensor = 0; tensor < p_.ring_tensors; ++tensor) {
      StoreShared(
          Slot(arriving_.slot) + tensor * p_.tensor_bytes,
          Packed::Load(static_cast<const StorageOf<X>*>(p_.tensors[tensor]) + offset, false));
    }
  }

  /// The coefficients of a row.
  __device__ void Take(int row) {
    const GivenStats stats = Stats(row);
    row_centred_ = kAlwaysCentred || (kLayer && MeanNeedsCorrection(stats));
    const RowTotals<float> totals = exchange_.Receive(row_centred_, row);
    coefficients_ = LongRowCoefficients<kKind>(totals, stats, row_centred_, share_);
    const float slope = kLayer ? coefficients_.slope * coefficients_.rstd : coefficients_.slope;
    done_ = false;
    if (__builtin_expect(!FitsF32<kKind>(totals, stats, slope), 0)) {
      float terms[2 * Columns::kElements];
      CarefulLongRow<X, kKind, kGranules>(
          p_, place_, careful_, retakes_,
          {ring_, leaving_.slot, RowOffset(row), column_, active_, has_last_}, stats, terms);
      columns_.AddTerms(terms);
      ++retakes_;
      done_ = true;
    }
  }

  __device__ void Output(int chunk) {
    Packed x;
    Packed dy;
    Packed added;
    const bool has_added = !kPlain && p_.ring_tensors > 2;
    if (Has(chunk)) {
      x = Load(leaving_.slot, 0);
      dy = Load(leaving_.slot, 1);
      if (has_added) added = Load(leaving_.slot, 2);
    }
    if (!kPlain) FenceBeforeBulkCopies();
    __syncwarp();
    if (is_first_lane_) ArriveAtBarrier(empty_ + leaving_.slot * kBarrierBytes);
    leaving_.Advance(p_.stages);
    if (!Has(chunk) || __builtin_expect(done_, 0)) return;
    float dx[V];
    if (kAlwaysCentred || (kLayer && __builtin_expect(row_centred_, 0))) {
      columns_.template Gradients<kLayer>(chunk, x, dy, coefficients_, dx);
    } else {
      columns_.template Gradients<false>(chunk, x, dy, coefficients_, dx);
    }
    if (has_added) {
#pragma unroll
      for (int v = 0; v < V; ++v) dx[v] += added.Wide(v);
    }
    Packed::Rounded(dx).Store(dx_ + chunk * chunk_columns(), kPlain || !p_.has_edges);
  }

  /// The sums leave the registers: a partial row.
  __device__ void StoreSums() {
    const int64_t row = (partial_ * p_.row_blocks + place_.cluster) * p_.hidden_size + column_;
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      columns_.StoreSums(g, p_, row + g * chunk_columns(), Has(g));
    }
    ++partial_;
  }

  const RingBackwardParams& p_;
  const LongPlace place_;
  LongShared& shared_;
  const LongExchange<kKind> exchange_;
  const LongCarefulExchange careful_;
  uint32_t ring_;  // this thread's first granule
  float share_;
  int column_;
  bool active_;    // the last warp may have more lanes than there is work for
  bool has_last_;  // this thread has all kGranules granules; one fewer otherwise
  bool is_first_lane_;
  uint32_t full_;
  uint32_t empty_;
  StorageOf<X>* dx_;  // the row that leaves
  Columns columns_;
  RingCursor arriving_;
  RingCursor leaving_;
  float mean_ = 0.0F;  // of the row that arrives
  bool centred_ = false;
  LongCoefficients coefficients_;  // of the row that leaves
  bool row_centred_ = false;
  bool done_ = false;  // by CarefulLongRow
  int retakes_ = 0;
  int partial_ = 0;
};

template <typename X, RowKind kKind, int kGranules, LongScale kScale, bool kPlain, int kMaxThreads,
          typename Launch>
__global__ void __launch_bounds__(kMaxThreads + kWarpThreads, 1)
    RowBackwardLong(const __grid_constant__ Launch launch) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char dynamic_shared[];
  __shared__ LongShared shared;
  AllowDependentLaunch();
  const auto [p, block] = FindRequest(launch);
  const LongPlace place(p, block, kGranules, kWideElements<X>);
  const uint32_t ring = SharedAddress(dynamic_shared);
  const LongExchange<kKind> exchange(reinterpret_cast<float*>(dynamic_shared + p.exchange_offset),
                                     shared.arrived, place.rank, p.cluster_blocks, place.warps);
  if (static_cast<int>(threadIdx.x) / kWarpThreads == place.warps) {
    // Only this warp uses these before the cluster's barrier.
    if (threadIdx.x % kWarpThreads == 0) shared.Init(place.warps);
    __syncwarp();
    LongFeeder<X> feeder(p, place, shared, ring, kGranules, kKind == RowKind::kLayer);
    feeder.Start();
    __syncwarp();
    ClusterArrive();
    ClusterWait();
    feeder.Run();
  } else {
    if (threadIdx.x < kWarpThreads) exchange.Init();
    __syncwarp();
    ClusterArrive();
    const LongCarefulExchange careful = {
        reinterpret_cast<double*>(dynamic_shared + p.careful_offset), shared.again, place.rank,
        p.cluster_blocks, place.warps};
    LongRows<X, kKind, kGranules, kScale, kPlain> rows(p, place, shared, exchange, careful, ring);
    rows.LoadWeight(ring + p.weights_offset);
    // Nobody may write to a peer's shared memory before the peer has started.
    __syncwarp();
    ClusterWait();
    rows.Run();
  }
  // A peer may still send to this block.
  __syncwarp();
  ClusterArrive();
  ClusterWait();
#endif
}

}  // namespace norm_device
