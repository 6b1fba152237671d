// The warps that compute backward of long rows: see row_norm_backward_long.cuh.
#pragma once

#include <cstdint>

#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_backward_long_careful.cuh"
#include "row_norm/row_norm_backward_long_columns.cuh"
#include "row_norm/row_norm_backward_long_exchange.cuh"
#include "row_norm/row_norm_backward_long_ring.cuh"
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
                      uint32_t ring, float* terms)
      : p_(p),
        place_(place),
        shared_(shared),
        exchange_(exchange),
        careful_(careful),
        thread_(min(static_cast<int>(threadIdx.x), place.threads - 1)),
        ring_(ring + thread_ * kPieceBytes),
        terms_(terms),
        share_(1.0F / static_cast<float>(p.hidden_size)),
        column_((place.first_granule + thread_) * V),
        active_(static_cast<int>(threadIdx.x) < place.threads),
        has_last_(active_ &&
                  (kGranules - 1) * place.threads + static_cast<int>(threadIdx.x) < place.granules),
        full_(shared.full[0].Address()),
        empty_(threadIdx.x % kWarpThreads == 0 ? shared.empty[0].Address() : 0),
        dx_(reinterpret_cast<char*>(static_cast<StorageOf<X>*>(p.dx) + RowOffset(0))) {
    arriving_.Begin(ring_, full_, ChunkOffset(kGranules), kRowBarrierBytes);
    leaving_.Begin(ring_, empty_, ChunkOffset(kGranules), kRowBarrierBytes);
  }

  /// `weights`: places in shared memory.
  __device__ void LoadWeight(uint32_t weights) {
    columns_.LoadWeight(p_, column_, chunk_columns(), active_, has_last_,
                        weights + thread_ * kPieceBytes, p_.tensor_bytes);
  }

  __device__ void Run() {
    int row = 0;  // that arrives
#pragma unroll 1
    while (partial_ < p_.block_partials) {
      // The last rows, and the partial rows of clusters with fewer rows than others.
      const int last = min((partial_ + 1) * p_.partial_stages, place_.rows);
#pragma unroll 1
      for (; row <= last; ++row) PassRow(row);
      StoreSums();
    }
  }

 private:
  using Exchange = LongExchange<kKind>;
  static constexpr int kBarrierBytes = sizeof(TransferBarrier);
  static constexpr int kRowBarrierBytes = kGranules * kBarrierBytes;

  __device__ int chunk_columns() const {
    return p_.tensor_bytes / static_cast<int>(sizeof(StorageOf<X>));
  }
  __device__ bool Has(int g) const { return g < kGranules - 1 ? active_ : has_last_; }
  __device__ int ring_tensors() const { return kPlain ? 2 : p_.ring_tensors; }
  /// The bytes of a chunk's slot after those of the row's first one.
  __device__ int ChunkOffset(int chunk) const { return chunk * ring_tensors() * p_.tensor_bytes; }
  /// A thread's granule of a chunk, of its first one where it has none.
  __device__ Packed Load(const LongRingRow& row, int chunk, int tensor) const {
    const int offset = chunk < kGranules - 1 || has_last_ ? ChunkOffset(chunk) : 0;
    return LoadShared<X, V>(row.first + offset + tensor * p_.tensor_bytes);
  }
  __device__ int64_t RowOffset(int row) const {
    return (place_.cluster + row * p_.row_blocks) * p_.hidden_size + column_;
  }
  __device__ GivenStats Stats(int row) const {
    const float2 stats = shared_.stats[row % LongShared::kRows];
    return {stats.y, stats.x};
  }

  /// A row arrives, the one before leaves. Rows are centred where the mean's own rounding shows in
  /// dx or dweight; 16-bit ones that are have code apart from the loop's.
  __device__ void PassRow(int row) {
    leaving_mean_ = mean_;
    mean_ = 0.0F;
    if (row < place_.rows) {
      WaitForBarrier(arriving_.barrier, arriving_.place.parity);
      const GivenStats stats = Stats(row);
      if (kAlwaysCentred || (kLayer && (p_.weight_is_f32 || MeanNeedsCorrection(stats)))) {
        mean_ = stats.mean;
      }
    }
    if (kAlwaysCentred || !kLayer || (mean_ == 0.0F && leaving_mean_ == 0.0F)) {
      PassChunks<kAlwaysCentred>(row);
    } else {
      PassChunks<kLayer>(row);
    }
  }

  template <bool kCentred>
  __device__ void PassChunks(int row) {
    LongSums sums[2];
    float bias = 0.0F;
    if (kCentred && row < place_.rows) sums[0].x.sum = bias = BiasedSum::Bias(Stats(row));
#pragma unroll
    for (int chunk = 0; chunk < kGranules; ++chunk) {
      if (row < place_.rows) {
        AddUp<kCentred>(row, chunk, sums);
        if (chunk == kGranules - 1) Send<kCentred>(row, bias, sums);
      }
      if (row > 0) {
        if (chunk == 0) Take<kCentred>(row - 1);
        Output<kCentred>(chunk);
      }
    }
    if (row > 0) {
      leaving_.place.Advance(p_.stages);
      leaving_.Begin(ring_, empty_, ChunkOffset(kGranules), kRowBarrierBytes);
      dx_ += p_.row_blocks * p_.hidden_size * static_cast<int64_t>(sizeof(StorageOf<X>));
    }
  }

  template <bool kCentred>
  __device__ void AddUp(int row, int chunk, LongSums (&sums)[2]) {
    if (chunk > 0) {
      WaitForBarrier(arriving_.barrier + chunk * kBarrierBytes, arriving_.place.parity);
    }
    if (!kPlain && p_.has_edges) {
      if (Has(chunk)) CopyUnaligned(RowOffset(row) + chunk * chunk_columns(), chunk);
      __syncwarp();
    }
    const Packed x = Load(arriving_, chunk, 0);
    const Packed dy = Load(arriving_, chunk, 1);
    columns_.template AddUp<kCentred>(chunk, has_last_, x, dy, mean_, sums);
  }

  template <bool kCentred>
  __device__ void Send(int row, float bias, const LongSums (&sums)[2]) {
    const bool centred = kAlwaysCentred || (kCentred && mean_ != 0.0F);
    const float gd = active_ ? sums[0].gd + sums[1].gd : 0.0F;
    const float g = active_ ? sums[0].g + sums[1].g : 0.0F;
    const double x = centred && active_ ? sums[0].x.Total(bias) : 0.0;
    exchange_.template Send<kCentred>(gd, g, x, centred, row % Exchange::kTurns);
    arriving_.place.Advance(p_.stages);
    arriving_.Begin(ring_, full_, ChunkOffset(kGranules), kRowBarrierBytes);
  }

  /// What bulk copies cannot: this thread's own granules, by single elements.
  __device__ void CopyUnaligned(int64_t offset, int chunk) const {
#pragma unroll 1
    for (int tensor = 0; tensor < p_.ring_tensors; ++tensor) {
      StoreShared(
          arriving_.first + ChunkOffset(chunk) + tensor * p_.tensor_bytes,
          Packed::Load(static_cast<const StorageOf<X>*>(p_.tensors[tensor]) + offset, false));
    }
  }

  /// The coefficients of a row.
  template <bool kCentred>
  __device__ void Take(int row) {
    const GivenStats stats = Stats(row);
    const bool centred = kAlwaysCentred || (kCentred && leaving_mean_ != 0.0F);
    const RowTotals<float> totals =
        exchange_.template Receive<kCentred>(centred, stats.mean, p_.hidden_size, row);
    coefficients_ = LongRowCoefficients<kKind>(totals, stats, centred, share_);
    const float slope = kLayer ? coefficients_.slope * coefficients_.rstd : coefficients_.slope;
    if (__builtin_expect(!FitsF32<kKind>(totals, stats, slope), 0)) {
      CarefulLongRow<X, kKind, kGranules>(
          p_, place_, careful_, retakes_,
          {leaving_.first, RowOffset(row), column_, active_, has_last_}, stats, !has_terms_,
          terms_);
      has_terms_ = true;
      ++retakes_;
      coefficients_.rstd = 0.0F;
    }
  }

  template <bool kCentred>
  __device__ void Output(int chunk) {
    const Packed x = Load(leaving_, chunk, 0);
    const Packed dy = Load(leaving_, chunk, 1);
    Packed added;
    const bool has_added = !kPlain && p_.ring_tensors > 2;
    if (has_added) added = Load(leaving_, chunk, 2);
    if (!kPlain) FenceBeforeBulkCopies();
    __syncwarp();
    if (leaving_.barrier != 0) ArriveAtBarrier(leaving_.barrier + chunk * kBarrierBytes);
    if (__builtin_expect(coefficients_.rstd == 0.0F, 0)) return;
    float dx[V];
    columns_.template Gradients<kCentred>(chunk, x, dy, coefficients_, dx);
    if (has_added) {
#pragma unroll
      for (int v = 0; v < V; ++v) dx[v] += added.Wide(v);
    }
    const Packed rounded = Packed::Rounded(dx);
    if (Has(chunk)) {
      rounded.Store(reinterpret_cast<StorageOf<X>*>(dx_ + chunk * p_.tensor_bytes),
                    kPlain || !p_.has_edges);
    }
  }

  /// The sums leave the registers: a partial row.
  __device__ void StoreSums() {
    if (has_terms_) columns_.AddTerms(terms_);
    has_terms_ = false;
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
  int thread_;     // the last one with columns where this one has none
  uint32_t ring_;  // this thread's first granule
  float* terms_;   // of rows that CarefulLongRow took, [2, kElements]
  float share_;
  int column_;
  bool active_;    // the last warp may have more lanes than there is work for
  bool has_last_;  // this thread has all kGranules granules; one fewer otherwise
  uint32_t full_;
  uint32_t empty_;  // 0: another lane leaves for the warp
  char* dx_;        // the row that leaves
  Columns columns_;
  LongRingRow arriving_;
  LongRingRow leaving_;
  float mean_ = 0.0F;  // of the row that arrives; 0 where it is not centred
  float leaving_mean_ = 0.0F;
  LongCoefficients coefficients_;  // of the row that leaves; rstd is 0 if it has left already
  int retakes_ = 0;                // rows that CarefulLongRow took
  bool has_terms_ = false;
  int partial_ = 0;
};

}  // namespace norm_device
