// The warps that compute backward of long rows: see row_norm_backward_long.cuh.
#pragma once

#include <cstdint>

#include "primitives/transfer_barrier.cuh"
#include "row_norm/row_norm_backward_long_careful.cuh"
#include "row_norm/row_norm_backward_long_columns.cuh"
#include "row_norm/row_norm_backward_long_exchange.cuh"
#include "row_norm/row_norm_backward_long_ring.cuh"
#include "row_norm/row_norm_backward_long_thread_ring.cuh"
#include "row_norm/row_norm_backward_ring.cuh"

namespace norm_device {

/// The warps that compute. kPlain: pointers are aligned and there is no dresidual_sum.
template <typename X, RowKind kKind, int kGranules, int kTileRows, int kTogether, bool kApart,
          bool kPlain, typename Launch>
class LongRows {
 public:
  static constexpr int V = kWideElements<X>;
  static constexpr bool kLayer = kKind == RowKind::kLayer;
  static constexpr int kRows = kTileRows;
  static constexpr int kChunks = kGranules * kRows;
  /// Rows of f32 are always centred: the mean's own rounding shows there.
  static constexpr bool kAlwaysCentred = kLayer && sizeof(StorageOf<X>) == sizeof(float);
  static constexpr LongScale kScale =
      LongWeightsAreShared(kKind, kGranules, static_cast<int>(sizeof(StorageOf<X>)))
          ? LongScale::kShared
          : LongScale::kRegisters;
  using Columns = LongColumns<X, kKind, kGranules, kScale>;
  using Exchange = LongExchange<kKind, kRows>;
  using ThreadRing = LongThreadRing<X, kGranules, kRows, kPlain>;
  using Chunk = typename ThreadRing::Chunk;
  using Packed = typename ThreadRing::Packed;

  __device__ LongRows(const RingBackwardParams& p, const LongPlace& place, LongShared& shared,
                      const Exchange& exchange, const LongCarefulExchange& careful, uint32_t ring,
                      float* terms)
      : p_(p),
        place_(place),
        shared_(shared),
        exchange_(exchange),
        careful_(careful),
        ring_(p, place, shared, ring),
        terms_(terms),
        share_(1.0F / static_cast<float>(p.hidden_size)),
        row_step_(p.row_blocks * p.hidden_size * static_cast<int64_t>(sizeof(StorageOf<X>))),
        dx_(reinterpret_cast<char*>(static_cast<StorageOf<X>*>(p.dx) + ring_.RowOffset(0))) {}

  /// `weights`: places in shared memory.
  __device__ void LoadWeight(uint32_t weights) {
    columns_.LoadWeight(p_, ring_.column(), ring_.chunk_columns(), ring_.active(), ring_.has_last(),
                        weights + ring_.thread() * kPieceBytes, p_.tensor_bytes);
  }

  __device__ void Run() {
    int unit = 0;  // that arrives
#pragma unroll 1
    while (partial_ < p_.block_partials) {
      // The last units, and the partial rows of clusters with fewer rows than others.
      const int last = min((partial_ + 1) * p_.partial_stages, place_.units);
#pragma unroll 1
      for (; unit <= last; ++unit) PassUnit(unit);
      StoreSums();
    }
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffU;
  /// Sums of g * d and g of a unit's rows.
  static constexpr int kValues = (kLayer ? 2 : 1) * kRows;

  /// Whether this thread's sums of a row count.
  __device__ bool Counts() const { return kGranules > 1 ? ring_.active() : ring_.has_last(); }
  __device__ GivenStats Stats(int row) const {
    const float2 stats = shared_.stats[row % LongShared::kRows];
    return {stats.y, stats.x};
  }
  /// Rows are centred where the mean's own rounding shows in dx or dweight.
  __device__ bool IsCentred(const GivenStats& stats) const {
    return kAlwaysCentred || (kLayer && (p_.weight_is_f32 || MeanNeedsCorrection(stats)));
  }

  /// Sums of a few 16-bit x do not round.
  __device__ static float Shift(const GivenStats& stats) {
    return sizeof(StorageOf<X>) == sizeof(float) ? SplitSum::Shift(stats) : 0.0F;
  }

  /// A unit arrives, the one before leaves. Rows are centred where the mean's own rounding shows in
  /// dx or dweight; 16-bit ones that are have code apart from the loop's.
  __device__ void PassUnit(int unit) {
    const bool leaving_centred = centred_;
    centred_ = false;
    if (unit < place_.units) {
      ring_.AwaitUnit();
      if (kLayer && !kAlwaysCentred) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (ring_.HasRow(unit, r) && IsCentred(Stats(unit * kRows + r))) centred_ = true;
        }
      }
    }
    if (kLayer && HasExactMean<Launch>(p_)) {
      PassChunks<kLayer, kLayer>(unit, leaving_centred);
    } else if (kAlwaysCentred || !kLayer || !(centred_ || leaving_centred)) {
      PassChunks<kAlwaysCentred, false>(unit, false);
    } else {
      PassChunks<kLayer, false>(unit, leaving_centred);
    }
  }

  /// kOwnTerms: see LongCoefficients.
  template <bool kCentred, bool kOwnTerms>
  __device__ void PassChunks(int unit, bool leaving_centred) {
    const bool arrives = unit < place_.units;
    const bool leaves = unit > 0;
    LongSums sums[kRows];
    LongCentre centres[kCentred ? kRows : 1];
    if (kCentred && arrives) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const GivenStats stats = Stats(unit * kRows + r);
        centres[r].mean = IsCentred(stats) ? stats.mean : 0.0F;
        centres[r].shift = Shift(stats);
        centres[r].begin = SplitSum::Begin(stats, centres[r].shift);
        sums[r].x.sum = centres[r].begin;
      }
    }
    LongCoefficients rows[kRows];
    typename Columns::Terms terms;
#pragma unroll
    for (int first = 0; first < kChunks; first += kTogether) {
      if (arrives) {
        AddUp<kCentred>(unit, first, centres, sums);
        if (first + kTogether >= kChunks) Send<kCentred>(unit, centres, sums);
      }
      if (!kApart && leaves) {
        if (first == 0) Take<kCentred, kOwnTerms>(unit - 1, leaving_centred, rows);
        Output<kCentred, kOwnTerms>(unit - 1, first, rows, terms);
      }
    }
    if (!leaves) return;
    if (kApart) {
      Take<kCentred, kOwnTerms>(unit - 1, leaving_centred, rows);
#pragma unroll
      for (int first = 0; first < kChunks; first += kTogether) {
        Output<kCentred, kOwnTerms>(unit - 1, first, rows, terms);
      }
    }
    ring_.AdvanceLeaving();
    dx_ += kRows * row_step_;
  }

  /// kTogether chunks from `first` on.
  template <bool kCentred>
  __device__ void AddUp(int unit, int first, const LongCentre (&centres)[kCentred ? kRows : 1],
                        LongSums (&sums)[kRows]) {
    Chunk chunks[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i < kChunks && ring_.HasRow(unit, (first + i) % kRows)) {
        chunks[i] = ring_.Arrive(unit, first + i);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int r = (first + i) % kRows;
      if (first + i < kChunks && ring_.HasRow(unit, r)) {
        columns_.template AddUp<kCentred>((first + i) / kRows, ring_.has_last(), chunks[i].x,
                                          chunks[i].dy, centres[kCentred ? r : 0], sums[r]);
      }
    }
  }

  template <bool kCentred>
  __device__ void Send(int unit, const LongCentre (&centres)[kCentred ? kRows : 1],
                       const LongSums (&sums)[kRows]) {
    const int turn = unit % Exchange::kTurns;
    const bool counts = Counts();
    float values[kValues];
    float of_x[2 * kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      values[r] = counts ? sums[r].gd : 0.0F;
      if constexpr (kLayer) values[kRows + r] = counts ? sums[r].g : 0.0F;
      if constexpr (kCentred) {
        of_x[r] = counts ? sums[r].x.sum - centres[r].begin : 0.0F;
        of_x[kRows + r] = counts ? sums[r].x.lost : 0.0F;
      }
    }
    if constexpr (kAlwaysCentred) {
      float all[2 * kValues];
#pragma unroll
      for (int k = 0; k < kValues; ++k) {
        all[k] = values[k];
        all[kValues + k] = of_x[k];
      }
      exchange_.Send(all, 0, turn);
      exchange_.Arrive(2 * kValues, turn);
    } else {
      exchange_.Send(values, 0, turn);
      if (kCentred && centred_) exchange_.Send(of_x, kValues, turn);
      exchange_.Arrive(kCentred && centred_ ? 2 * kValues : kValues, turn);
    }
    ring_.AdvanceArriving();
  }

  /// The coefficients of a unit's rows, with rstd 0 of one that has left already: each lane works
  /// them out for one row, of which it has a sum.
  template <bool kCentred, bool kOwnTerms>
  __device__ void Take(int unit, bool has_x, LongCoefficients (&rows)[kRows]) {
    const int turn = unit % Exchange::kTurns;
    exchange_.Wait(unit);
    const int lane = threadIdx.x % kWarpThreads;
    constexpr int kLanes = kWarpThreads / (kAlwaysCentred ? 2 * kValues : kValues);
    const int own = unit * kRows + lane / kLanes % kRows;
    const GivenStats stats = Stats(own);
    const bool centred = kCentred && IsCentred(stats);
    const auto deviation = [&](double total) {
      return SplitSum::Deviation(total, stats, Shift(stats), p_.hidden_size);
    };
    RowTotals<float> totals;
    float x = 0.0F;
    float lost = 0.0F;
    if constexpr (kAlwaysCentred) {
      const double total = exchange_.template Totals<2 * kValues, double>(0, turn);
      const bool of_x = lane / kLanes / kRows == 2;
      Exchange::Spread(of_x ? deviation(total) : static_cast<float>(total), totals.gd, totals.g, x,
                       lost);
    } else {
      Exchange::Spread(exchange_.template Totals<kValues, float>(0, turn), totals.gd, totals.g);
      if (kCentred && has_x) {
        const double total = exchange_.template Totals<kValues, double>(kValues, turn);
        Exchange::Spread(lane < kWarpThreads / 2 ? deviation(total) : static_cast<float>(total), x,
                         lost);
      }
    }
    if (centred) totals.d = x + lost;
    const LongCoefficients of_own = LongRowCoefficients<kKind>(totals, stats, centred, share_);
    const float slope = kLayer ? of_own.slope * of_own.rstd : of_own.slope;
    const bool fits = FitsF32<kKind>(totals, stats, slope) || own >= place_.rows;
    const unsigned unfit = ~__ballot_sync(kAllLanes, fits);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      LongCoefficients& row = rows[r];
      const GivenStats given = Stats(unit * kRows + r);
      row.rstd = given.rstd;
      if constexpr (kLayer) {
        if (kCentred) row.mean = IsCentred(given) ? given.mean : 0.0F;
        row.h_shift = __shfl_sync(kAllLanes, of_own.h_shift, r * kLanes);
        row.shift = __shfl_sync(kAllLanes, of_own.shift, r * kLanes);
      }
      row.slope = __shfl_sync(kAllLanes, of_own.slope, r * kLanes);
    }
    const auto place_of = [&](int r) {
      return LongRowPlace{ring_.leaving_first() + ring_.ChunkOffset(r),
                          kRows * place_.slot_bytes,
                          ring_.RowOffset(unit * kRows + r),
                          ring_.column(),
                          ring_.active(),
                          ring_.has_last()};
    };
    if constexpr (kOwnTerms) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (!ring_.HasRow(unit, r)) continue;
        rows[r].dweight_mean = Stats(unit * kRows + r).mean;
        rows[r].dweight_shift = -LostOfMean<X, kGranules>(careful_, retakes_, place_of(r),
                                                          rows[r].dweight_mean, share_) *
                                rows[r].rstd;
        ++retakes_;
      }
    }
    if (__builtin_expect(unfit != 0, 0)) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if ((unfit >> (r * kLanes) & 1U) == 0) continue;
        CarefulLongRow<X, kKind, kGranules>(p_, place_, careful_, retakes_, place_of(r),
                                            Stats(unit * kRows + r), !has_terms_, terms_);
        has_terms_ = true;
        ++retakes_;
        rows[r].rstd = 0.0F;
      }
    }
  }

  /// kTogether chunks from `first` on. `terms`: of the rows of a granule.
  template <bool kCentred, bool kOwnTerms>
  __device__ void Output(int unit, int first, const LongCoefficients (&rows)[kRows],
                         typename Columns::Terms& terms) {
    Chunk chunks[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (first + i < kChunks && ring_.HasRow(unit, (first + i) % kRows))
        chunks[i] = ring_.Leave(first + i);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int g = (first + i) / kRows;
      const int r = (first + i) % kRows;
      if (first + i >= kChunks) continue;
      if (ring_.HasRow(unit, r)) {
        if constexpr (kRows == 1) {
          Output<kCentred, kOwnTerms, false>(g, r, chunks[i], rows[r], columns_.Sums(g));
        } else if (r == 0) {
          Output<kCentred, kOwnTerms, true>(g, r, chunks[i], rows[r], terms);
        } else {
          Output<kCentred, kOwnTerms, false>(g, r, chunks[i], rows[r], terms);
        }
      }
      if (kRows > 1 && r == kRows - 1) columns_.Add(g, terms);
    }
  }

  template <bool kCentred, bool kOwnTerms, bool kFirst>
  __device__ void Output(int g, int r, const Chunk& chunk, const LongCoefficients& row,
                         typename Columns::Terms& terms) {
    if (__builtin_expect(row.rstd == 0.0F, 0)) {
      if (kFirst) terms.Clear();
      return;
    }
    float dx[V];
    columns_.template Gradients<kCentred, kOwnTerms, kFirst>(g, chunk.x, chunk.dy, row, dx, terms);
    if (!kPlain && p_.ring_tensors > 2) {
#pragma unroll
      for (int v = 0; v < V; ++v) dx[v] += chunk.added.Wide(v);
    }
    const Packed rounded = Packed::Rounded(dx);
    if (ring_.Has(g)) {
      rounded.Store(reinterpret_cast<StorageOf<X>*>(dx_ + r * row_step_ + g * p_.tensor_bytes),
                    kPlain || !p_.has_edges);
    }
  }

  /// The sums leave the registers: a partial row.
  __device__ void StoreSums() {
    if (has_terms_) columns_.AddTerms(terms_);
    has_terms_ = false;
    const int64_t row =
        (partial_ * p_.row_blocks + place_.cluster) * p_.hidden_size + ring_.column();
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      columns_.StoreSums(g, p_, row + g * ring_.chunk_columns(), ring_.Has(g));
    }
    ++partial_;
  }

  const RingBackwardParams& p_;
  const LongPlace place_;
  LongShared& shared_;
  const Exchange exchange_;
  const LongCarefulExchange careful_;
  ThreadRing ring_;
  float* terms_;  // of rows that CarefulLongRow took, [2, kElements]
  float share_;
  int64_t row_step_;  // bytes
  char* dx_;          // the unit that leaves
  Columns columns_;
  bool centred_ = false;  // some row of the unit that arrives is
  int retakes_ = 0;       // rows that CarefulLongRow took
  bool has_terms_ = false;
  int partial_ = 0;
};

}  // namespace norm_device
