// The resident kernel for planes of whole granules (NCHW): an item is a channel.
//
// Each thread owns the ring slots that it fills: a copy is waited for by the thread that issued it,
// and no barrier stands between its arrival, its statistics and its normalization. Of all steps of
// all items in a row, step k is normalized and stored while step k + ring_steps - in_flight is
// taken into the sums and later ones are on their way; so a slice's sums are with the group some
// steps before its first value is needed.
#pragma once

#include "batch_norm/batch_norm_ring_math.cuh"

namespace norm_device {

#if NORM_HAVE_RING

/// A thread's place in the slice of an item.
class SlicePosition {
 public:
  __device__ SlicePosition(const RingShape& shape, int threads, uint32_t first_granule)
      : run_(shape.run),
        start_column_(first_granule % shape.run),
        start_offset_(first_granule / shape.run * shape.image + start_column_),
        step_column_(threads % shape.run),
        step_offset_(threads / shape.run * shape.image + step_column_),
        wrap_(shape.image - shape.run) {}

  __device__ void StartItem(uint32_t item) {
    column_ = start_column_;
    offset_ = start_offset_ + item * run_;
  }
  __device__ void Advance() {
    column_ += step_column_;
    offset_ += step_offset_;
    if (column_ >= run_) {
      column_ -= run_;
      offset_ += wrap_;
    }
  }
  __device__ int64_t bytes() const { return static_cast<int64_t>(offset_) * kRingGranuleBytes; }

 private:
  uint32_t run_;
  uint32_t start_column_;
  uint32_t start_offset_;
  uint32_t step_column_;
  uint32_t step_offset_;
  uint32_t wrap_;
  uint32_t column_ = 0;
  uint32_t offset_ = 0;
};

template <typename Op>
struct PlaneRingShared {
  static constexpr int kWarps = Op::kTraits.threads / 32;
  double sums[kRingBuffers][kWarps][Op::kSums];
  typename Op::Coefficients coefficients[kRingBuffers];
  float centres[kRingBuffers];
  WarpBarrier summed[kRingBuffers];  // by the warps that carry data
  WarpBarrier ready[kRingBuffers];   // coefficients
};

/// Adds up what a block's warps left and shows it to the group.
template <typename Op>
__device__ void PublishSums(const RingParams<typename Op::Segment>& p, PlaneRingShared<Op>& shared,
                            uint32_t group, uint32_t member, uint32_t rounds) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint32_t buffer = round % kRingBuffers;
    shared.summed[buffer].WaitPhase(round / kRingBuffers);
    double sums[Op::kSums];
#pragma unroll
    for (int k = 0; k < Op::kSums; ++k) {
      sums[k] = lane < PlaneRingShared<Op>::kWarps ? shared.sums[buffer][lane][k] : 0.0;
    }
    WarpSum(sums);
    if (lane == 0) {
      const uint64_t item = group + static_cast<uint64_t>(round) * p.shape.groups;
      uint64_t* to = p.published + (item * p.shape.group_blocks + member) * Op::kPublished;
      PublishPair(to, sums[0], sums[1]);
      if constexpr (Op::kSums == 3) PublishPair(to + 2, sums[2], 0.0);
    }
  }
}

/// Adds up the sums of a group and leaves coefficients in shared memory.
template <typename X, typename Op>
__device__ void GatherSums(const RingParams<typename Op::Segment>& p, PlaneRingShared<Op>& shared,
                           uint32_t group, uint32_t member, uint32_t rounds) {
  constexpr int kBlocksPerLane = 8;
  const uint32_t lane = threadIdx.x % 32;
  RingItem place(group, p.shape.items);
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint32_t buffer = round % kRingBuffers;
    const uint64_t item = group + static_cast<uint64_t>(round) * p.shape.groups;
    const uint64_t* from = p.published + item * p.shape.group_blocks * Op::kPublished;
    const typename Op::Segment& segment = p.segments[place.segment];
    const typename Op::Parameters parameters =
        Op::Load(segment, place.item, p.weight_like_x, member == 0);
    double parts[kBlocksPerLane][4];
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int j = 0; j < kBlocksPerLane; ++j) {
        const uint32_t block = lane + 32 * j;
        if (block < p.shape.group_blocks) {
          const uint64_t* sums = from + block * Op::kPublished;
          complete &= TryReadPair(sums, parts[j][0], parts[j][1]);
          if constexpr (Op::kSums == 3) complete &= TryReadPair(sums + 2, parts[j][2], parts[j][3]);
        }
      }
    } while (!__all_sync(0xFFFFFFFFU, complete));
    double sums[Op::kSums] = {};
#pragma unroll
    for (int j = 0; j < kBlocksPerLane; ++j) {
      if (lane + 32 * j < p.shape.group_blocks) {
#pragma unroll
        for (int k = 0; k < Op::kSums; ++k) sums[k] += parts[j][k];
      }
    }
    WarpSum(sums);
    if (lane == 0) {
      shared.summed[buffer].WaitPhase(round / kRingBuffers);  // for the centre
      typename Op::Statistics statistics;
      const typename Op::Coefficients coefficients =
          Op::Finish(parameters, sums, shared.centres[buffer], p.shape.share, statistics);
      shared.coefficients[buffer] = coefficients;
      shared.ready[buffer].Arrive();
      if (member == 0) {
        Op::Write(segment, place.item, p.weight_like_x, p.shape.values, parameters, coefficients,
                  statistics);
      }
    }
    __syncwarp();
    place.Advance(p.shape.groups, p.shape.items);
  }
}

#endif  // NORM_HAVE_RING

template <typename X, typename Op, bool kAligned>
__global__ void __launch_bounds__(Op::kTraits.threads + kRingHelperThreads, 1)
    PlaneRing(const __grid_constant__ RingParams<typename Op::Segment> p) {
#if NORM_HAVE_RING
  constexpr int kThreads = Op::kTraits.threads;
  constexpr int kUnroll = Op::kTraits.unroll;
  constexpr int kInFlight = Op::kTraits.in_flight;
  constexpr int kTensors = Op::kTraits.tensors;
  constexpr uint32_t kStep = kThreads * kUnroll;
  constexpr uint32_t kStepBytes = kStep * kTensors * kRingGranuleBytes;
  extern __shared__ uint4 ring[];
  __shared__ PlaneRingShared<Op> shared;

  const RingShape& shape = p.shape;
  const uint32_t group = blockIdx.x / shape.group_blocks;
  const uint32_t member = blockIdx.x % shape.group_blocks;
  const uint32_t all_items = shape.items * p.segment_count;
  const uint32_t rounds = group < all_items ? (all_items - 1 - group) / shape.groups + 1 : 0;
  const uint32_t thread = threadIdx.x;
  const bool carries = thread < kThreads;
  const uint32_t values = shape.run * shape.images;
  const uint32_t first = member * shape.slice;
  const uint32_t slice = first < values ? min(shape.slice, values - first) : 0;
  const uint32_t steps_end = shape.steps * kStep;
  const uint32_t total = rounds * shape.steps;

  if (thread == 0) {
    for (int i = 0; i < kRingBuffers; ++i) {
      shared.summed[i].Init(PlaneRingShared<Op>::kWarps);
      shared.ready[i].Init(1);
    }
  }
  if (!carries) {
    for (uint32_t round = thread - kThreads; round < rounds; round += kRingHelperThreads) {
      const uint64_t item = group + static_cast<uint64_t>(round) * shape.groups;
      for (int k = 0; k < Op::kPublished; ++k) {
        p.published[(item * shape.group_blocks + member) * Op::kPublished + k] = kNotPublished;
      }
    }
  }

  const uint32_t ring_begin = SharedAddress(ring) + thread * kRingGranuleBytes;
  const uint32_t ring_end = ring_begin + shape.ring_steps * kStepBytes;
  const auto next_slot = [&](uint32_t slot) {
    return slot + kStepBytes == ring_end ? ring_begin : slot + kStepBytes;
  };

  RingItem load_item(group, shape.items);
  SlicePosition load_at(shape, kThreads, first + thread);
  const char* inputs[kTensors];
  const auto start_load = [&] {
    const typename Op::Segment& segment = p.segments[load_item.segment];
#pragma unroll
    for (int t = 0; t < kTensors; ++t) inputs[t] = static_cast<const char*>(Op::Input(segment, t));
    load_at.StartItem(load_item.item);
  };
  if (rounds > 0) start_load();
  uint32_t load_slot = ring_begin;
  uint32_t load_step = 0;
  uint32_t loaded = 0;
  const auto load = [&] {
    if (loaded < total) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (load_step + u * kThreads + thread < slice) {
#pragma unroll
          for (int t = 0; t < kTensors; ++t) {
            const char* source = inputs[t] + load_at.bytes();
            const uint32_t slot = load_slot + (t * kUnroll + u) * kThreads * kRingGranuleBytes;
            if constexpr (kAligned) {
              CopyGranuleAsync(slot, source);
            } else {
              StoreShared(slot, LoadGranuleWords<X, false>(source));
            }
          }
        }
        load_at.Advance();
      }
      ++loaded;
      load_slot = next_slot(load_slot);
      load_step += kStep;
      if (load_step == steps_end && loaded < total) {
        load_step = 0;
        load_item.Advance(shape.groups, shape.items);
        start_load();
      }
    }
    CommitCopies();
  };
  if (carries) {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) load();
  }
  SyncCleared(shape);
  if (!carries) {
    if (thread < kThreads + 32) {
      PublishSums<Op>(p, shared, group, member, rounds);
    } else {
      GatherSums<X, Op>(p, shared, group, member, rounds);
    }
    return;
  }
  if (rounds == 0) return;

  // The centre of an item is read one item ahead.
  const auto centre_of = [&](const RingItem& place) {
    return Op::Centre(p.segments[place.segment], place.item,
                      static_cast<int64_t>(place.item) * shape.run * Op::kElements);
  };
  RingItem sum_item(group, shape.items);
  float centre = 0;
  float next_centre = centre_of(sum_item);
  float smallest_square = 0;
  double sums[Op::kSums] = {};
  uint32_t sum_slot = ring_begin;
  uint32_t sum_step = 0;
  uint32_t sum_round = 0;
  const auto take_sums = [&] {
    if (sum_round == rounds) return;
    if (sum_step == 0) {
      centre = next_centre;
      smallest_square = Op::SmallestSquare(p.segments[sum_item.segment]);
      if (sum_round + 1 < rounds) {
        sum_item.Advance(shape.groups, shape.items);
        next_centre = centre_of(sum_item);
      }
#pragma unroll
      for (int k = 0; k < Op::kSums; ++k) sums[k] = 0.0;
    }
    uint4 raw[kTensors][kUnroll];
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        raw[t][u] = LoadShared(sum_slot + (t * kUnroll + u) * kThreads * kRingGranuleBytes);
      }
    }
    if (sum_step + kStep <= slice) {
      Op::Accumulate(raw, kUnroll, centre, smallest_square, sums);
    } else {
      int inside = 0;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) inside += sum_step + u * kThreads + thread < slice ? 1 : 0;
      Op::Accumulate(raw, inside, centre, smallest_square, sums);
    }
    sum_slot = next_slot(sum_slot);
    sum_step += kStep;
    if (sum_step == steps_end) {
      const uint32_t buffer = sum_round % kRingBuffers;
      WarpSum(sums);
      if (thread % 32 == 0) {
#pragma unroll
        for (int k = 0; k < Op::kSums; ++k) shared.sums[buffer][thread / 32][k] = sums[k];
        if (thread == 0) shared.centres[buffer] = centre;
        shared.summed[buffer].Arrive();
      }
      sum_step = 0;
      ++sum_round;
    }
  };
  for (int step = kInFlight; step < shape.ring_steps; ++step) {
    load();
    WaitForCopies<kInFlight>();
    take_sums();
  }

  RingItem store_item(group, shape.items);
  SlicePosition store_at(shape, kThreads, first + thread);
  char* output = nullptr;
  typename Op::Direct direct = {};
  bool is_direct = false;
  uint32_t store_slot = ring_begin;
  uint32_t store_step = 0;
  uint32_t round = 0;
  while (round < rounds) {
    if (store_step == 0) {
      const typename Op::Segment& segment = p.segments[store_item.segment];
      output = static_cast<char*>(Op::Output(segment));
      store_at.StartItem(store_item.item);
      const uint32_t buffer = round % kRingBuffers;
      shared.ready[buffer].WaitPhase(round / kRingBuffers);
      direct = shared.coefficients[buffer].direct;
      is_direct = shared.coefficients[buffer].is_direct;
    }
    uint4 raw[kTensors][kUnroll];
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        raw[t][u] = LoadShared(store_slot + (t * kUnroll + u) * kThreads * kRingGranuleBytes);
      }
    }
    uint4 words[kUnroll];
    if (is_direct) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        words[u] = MapGranule<X, Op>(
            raw, u, [&](const auto& inputs, int) { return Op::ApplyDirect(inputs, direct); });
      }
    } else {
      const typename Op::Coefficients coefficients = shared.coefficients[round % kRingBuffers];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        words[u] = MapGranule<X, Op>(
            raw, u, [&](const auto& inputs, int) { return Op::Apply(inputs, coefficients); });
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (store_step + u * kThreads + thread < slice) {
        StoreGranuleWords<X, kAligned>(output + store_at.bytes(), words[u]);
      }
      store_at.Advance();
    }
    store_slot = next_slot(store_slot);
    store_step += kStep;
    if (store_step == steps_end) {
      store_step = 0;
      if (++round < rounds) store_item.Advance(shape.groups, shape.items);
    }
    load();
    WaitForCopies<kInFlight>();
    take_sums();
  }
#endif
}

}  // namespace norm_device
