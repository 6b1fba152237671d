// The resident kernel for small planes (NCHW): an item is a few channels whose planes lie side by
// side, so that a run of whole granules of 16 bytes is read per image where one plane would be a
// fraction of it. A thread owns one column of granules, with values of at most two channels, and
// walks over images. Ring and order of steps: batch_norm_plane_ring.cuh.
#pragma once

#include "batch_norm/batch_norm_folded_exchange.cuh"
#include "batch_norm/batch_norm_folded_sums.cuh"
#include "batch_norm/batch_norm_ring_math.cuh"

namespace norm_device {

#if NORM_HAVE_RING
/// The outputs of a granule with a channel that has no direct form; of each channel by itself, so
/// that its bits do not depend on its neighbour. A call, to keep it out of the loop's registers.
template <typename X, typename Op>
__device__ __noinline__ uint4 MapFoldedGranule(uint4 first_tensor, uint4 last_tensor,
                                               const typename Op::Coefficients* a,
                                               const typename Op::Coefficients* b, int split) {
  constexpr int kTensors = Op::kFoldedTraits.tensors;
  uint4 raw[kTensors][1];
  raw[0][0] = first_tensor;
  raw[kTensors - 1][0] = last_tensor;
  return MapGranule<X, Op>(raw, 0, [&](const auto& inputs, int i) {
    const typename Op::Coefficients& c = i < split ? *a : *b;
    return c.is_direct ? Op::ApplyDirect(inputs, c.direct) : Op::Apply(inputs, c);
  });
}
#endif  // NORM_HAVE_RING

template <typename X, typename Op, bool kAligned>
__global__ void __launch_bounds__(Op::kFoldedTraits.threads + kRingHelperThreads, 1)
    FoldedRing(const __grid_constant__ RingParams<typename Op::Segment> p) {
#if NORM_HAVE_RING
  constexpr int kThreads = Op::kFoldedTraits.threads;
  constexpr int kUnroll = Op::kFoldedTraits.unroll;
  constexpr int kInFlight = Op::kFoldedTraits.in_flight;
  constexpr int kTensors = Op::kFoldedTraits.tensors;
  constexpr int kElements = Op::kElements;
  extern __shared__ uint4 ring[];
  __shared__ FoldedRingShared<Op> shared;

  const RingShape& shape = p.shape;
  const uint32_t group = blockIdx.x / shape.group_blocks;
  const uint32_t member = blockIdx.x % shape.group_blocks;
  const uint32_t all_items = shape.items * p.segment_count;
  const uint32_t rounds = group < all_items ? (all_items - 1 - group) / shape.groups + 1 : 0;
  const uint32_t thread = threadIdx.x;
  const uint32_t rows = kThreads / shape.run;  // images side by side
  const uint32_t active = rows * shape.run;
  const uint32_t column = thread % shape.run;
  const uint32_t row = thread / shape.run;
  const uint32_t first = member * shape.slice;
  const uint32_t slice = first < shape.images ? min(shape.slice, shape.images - first) : 0;
  const uint32_t step_images = rows * kUnroll;
  const uint32_t steps_end = shape.steps * step_images;
  const uint32_t total = rounds * shape.steps;

  if (thread == 0) {
    for (int i = 0; i < kFoldedRingBuffers; ++i) {
      shared.summed[i].Init(kThreads / 32);
      shared.ready[i].Init(1);
    }
  }
  if (thread >= kThreads) {
    const uint64_t words = shape.item_channels * Op::kPublished;
    for (uint32_t round = 0; round < rounds; ++round) {
      const uint64_t item = group + static_cast<uint64_t>(round) * shape.groups;
      for (uint32_t i = thread - kThreads; i < words; i += kRingHelperThreads) {
        p.published[(item * shape.group_blocks + member) * words + i] = kNotPublished;
      }
    }
  }

  const uint32_t granule_stride = active * kRingGranuleBytes;
  const uint32_t step_bytes = granule_stride * kUnroll * kTensors;
  // Threads without a column read the first one's slots, to no effect.
  const uint32_t ring_begin =
      SharedAddress(ring) + (thread < active ? thread : 0) * kRingGranuleBytes;
  const uint32_t ring_end = ring_begin + shape.ring_steps * step_bytes;
  const auto next_slot = [&](uint32_t slot) {
    return slot + step_bytes == ring_end ? ring_begin : slot + step_bytes;
  };
  /// Granules of the thread's column in an item: the last one may hold fewer channels.
  const auto images_of = [&](const RingItem& place) {
    const uint32_t channels =
        min(shape.item_channels, shape.channels - place.item * shape.item_channels);
    return thread < active && column * kElements < channels * shape.spatial ? slice : 0;
  };
  const uint32_t start_offset = (first + row) * shape.image + column;
  const uint32_t image_step = rows * shape.image;

  RingItem load_item(group, shape.items);
  const char* inputs[kTensors];
  uint32_t load_offset = 0;
  uint32_t load_images = 0;
  const auto start_load = [&] {
    const typename Op::Segment& segment = p.segments[load_item.segment];
#pragma unroll
    for (int t = 0; t < kTensors; ++t) inputs[t] = static_cast<const char*>(Op::Input(segment, t));
    load_offset = start_offset + load_item.item * shape.run;
    load_images = images_of(load_item);
  };
  if (rounds > 0) start_load();
  uint32_t load_slot = ring_begin;
  uint32_t load_step = 0;
  uint32_t loaded = 0;
  const auto load = [&] {
    if (loaded < total) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (load_step + u * rows + row < load_images) {
#pragma unroll
          for (int t = 0; t < kTensors; ++t) {
            const char* source = inputs[t] + static_cast<int64_t>(load_offset) * kRingGranuleBytes;
            const uint32_t slot = load_slot + (t * kUnroll + u) * granule_stride;
            if constexpr (kAligned) {
              CopyGranuleAsync(slot, source);
            } else {
              StoreShared(slot, LoadGranuleWords<X, false>(source));
            }
          }
        }
        load_offset += image_step;
      }
      ++loaded;
      load_slot = next_slot(load_slot);
      load_step += step_images;
      if (load_step == steps_end && loaded < total) {
        load_step = 0;
        load_item.Advance(shape.groups, shape.items);
        start_load();
      }
    }
    CommitCopies();
  };
  if (thread < kThreads) {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) load();
  }
  SyncCleared(shape);
  if (thread >= kThreads) {
    if (thread < kThreads + 32) {
      PublishFolded<Op>(p, shared, group, member, rounds);
    } else {
      GatherFolded<X, Op>(p, shared, group, member, rounds);
    }
    return;
  }
  if (rounds == 0) return;

  // Elements of the thread's granules before `split` are of channel `first_channel` of the item.
  const uint32_t first_channel = min(column * kElements / shape.spatial, shape.item_channels - 1);
  const uint32_t second_channel = min(first_channel + 1, shape.item_channels - 1);
  const int split =
      static_cast<int>(min((first_channel + 1) * shape.spatial - column * kElements, kElements));
  const auto centre_of = [&](const RingItem& place, uint32_t channel_in_item) {
    const uint32_t channel =
        min(place.item * shape.item_channels + channel_in_item, shape.channels - 1);
    return Op::Centre(p.segments[place.segment], channel,
                      static_cast<int64_t>(channel) * shape.spatial);
  };
  RingItem sum_item(group, shape.items);
  float next_centres[2] = {centre_of(sum_item, first_channel), centre_of(sum_item, second_channel)};
  FoldedSums<X, Op> sums;
  uint32_t sum_images = 0;
  uint32_t sum_slot = ring_begin;
  uint32_t sum_step = 0;
  uint32_t sum_round = 0;
  const auto take_sums = [&] {
    if (sum_round == rounds) return;
    if (sum_step == 0) {
      sums.Start(next_centres, split, Op::SmallestSquare(p.segments[sum_item.segment]));
      sum_images = images_of(sum_item);
      if (sum_round + 1 < rounds) {
        sum_item.Advance(shape.groups, shape.items);
        next_centres[0] = centre_of(sum_item, first_channel);
        next_centres[1] = centre_of(sum_item, second_channel);
      }
    }
    // Slots without a copy hold something, too: it is not added.
    uint4 raw[kTensors][kUnroll];
    int inside = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      inside += sum_step + u * rows + row < sum_images ? 1 : 0;
#pragma unroll
      for (int t = 0; t < kTensors; ++t) {
        raw[t][u] = LoadShared(sum_slot + (t * kUnroll + u) * granule_stride);
      }
    }
    sums.Add(raw, inside, sum_slot);
    sum_slot = next_slot(sum_slot);
    sum_step += step_images;
    const bool last = sum_step == steps_end;
    if (last || sums.Full()) {
      sums.Flush({ring_begin, ring_end, step_bytes, granule_stride, split});
    }
    if (last) {
      const uint32_t buffer = sum_round % kFoldedRingBuffers;
#pragma unroll
      for (int k = 0; k < Op::kSums; ++k) {
        shared.sums[buffer][k][0][thread] = sums.Total(k, 0);
        shared.sums[buffer][k][1][thread] = sums.Total(k, 1);
      }
      if (row == 0 && column * kElements <= first_channel * shape.spatial) {
        shared.centres[buffer][first_channel] = sums.Centre(0);
      }
      if (row == 0 && split < kElements) shared.centres[buffer][second_channel] = sums.Centre(1);
      __syncwarp();
      if (thread % 32 == 0) shared.summed[buffer].Arrive();
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
  char* output = nullptr;
  uint32_t store_offset = 0;
  uint32_t store_images = 0;
  typename Op::Direct direct[kElements];
  bool is_direct = false;
  uint32_t store_slot = ring_begin;
  uint32_t store_step = 0;
  uint32_t round = 0;
  while (round < rounds) {
    if (store_step == 0) {
      const typename Op::Segment& segment = p.segments[store_item.segment];
      output = static_cast<char*>(Op::Output(segment));
      const uint32_t buffer = round % kFoldedRingBuffers;
      store_offset = start_offset + store_item.item * shape.run;
      store_images = images_of(store_item);
      shared.ready[buffer].WaitPhase(round / kFoldedRingBuffers);
      const typename Op::Coefficients& a = shared.coefficients[buffer][first_channel];
      const typename Op::Coefficients& b = shared.coefficients[buffer][second_channel];
      is_direct = a.is_direct && (b.is_direct || split == kElements);
      const typename Op::Direct direct_a = a.direct;
      const typename Op::Direct direct_b = b.direct;
#pragma unroll
      for (int i = 0; i < kElements; ++i) direct[i] = Op::Select(i < split, direct_a, direct_b);
    }
    uint4 raw[kTensors][kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int t = 0; t < kTensors; ++t) {
        raw[t][u] = LoadShared(store_slot + (t * kUnroll + u) * granule_stride);
      }
    }
    uint4 words[kUnroll];
    if (is_direct) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        words[u] = MapGranule<X, Op>(
            raw, u, [&](const auto& inputs, int i) { return Op::ApplyDirect(inputs, direct[i]); });
      }
    } else {
      const auto& coefficients = shared.coefficients[round % kFoldedRingBuffers];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        words[u] =
            MapFoldedGranule<X, Op>(raw[0][u], raw[kTensors - 1][u], &coefficients[first_channel],
                                    &coefficients[second_channel], split);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (store_step + u * rows + row < store_images) {
        StoreGranuleWords<X, kAligned>(
            output + static_cast<int64_t>(store_offset) * kRingGranuleBytes, words[u]);
      }
      store_offset += image_step;
    }
    store_slot = next_slot(store_slot);
    store_step += step_images;
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
