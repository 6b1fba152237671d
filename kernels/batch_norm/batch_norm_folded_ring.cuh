// The resident kernel for small planes (NCHW): an item is a few channels whose planes lie side by
// side, so that a run of whole granules of 16 bytes is read per image where one plane would be a
// fraction of it. A thread owns one column of granules, with values of at most two channels, and
// walks over images. Ring and order of steps: batch_norm_plane_ring.cuh.
#pragma once

#include "batch_norm/batch_norm_folded_exchange.cuh"
#include "batch_norm/batch_norm_folded_place.cuh"
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
  const bool is_cluster = shape.group_blocks > 1;
  if (thread == 0) shared.Init();
  if (is_cluster) ClusterArrive();
  __syncthreads();
  const FoldedPlace<Op> place(shape, member, ring);
  if (thread >= kThreads) {
    if (is_cluster) ClusterWait();
    char* ring_end = reinterpret_cast<char*>(ring) + shape.ring_steps * place.step_bytes;
    auto* received = reinterpret_cast<double*>(ring_end);
    if (thread < kThreads + 32) {
      PublishFolded<Op>(p, shared, received, group, member, rounds);
    } else {
      GatherFolded<X, Op>(p, shared, received, group, member, rounds);
    }
    __syncwarp();
    if (is_cluster) {
      ClusterArrive();
      ClusterWait();
    }
    return;
  }
  FoldedCopies<X, Op, kAligned> copies(p, place, group, rounds);
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) copies.Step(p, place);

  // Elements of the thread's granules before `split` are of channel `first_channel` of the item.
  const uint32_t row = place.row;
  const uint32_t first_value = place.column * kElements;
  const uint32_t first_channel = min(first_value / shape.spatial, shape.item_channels - 1);
  const uint32_t second_channel = min(first_channel + 1, shape.item_channels - 1);
  const int split =
      static_cast<int>(min((first_channel + 1) * shape.spatial - first_value, kElements));
  const auto centre_of = [&](const RingItem& item, uint32_t channel_in_item) {
    const uint32_t channel =
        min(item.item * shape.item_channels + channel_in_item, shape.channels - 1);
    return Op::Centre(p.segments[item.segment], channel,
                      static_cast<int64_t>(channel) * shape.spatial);
  };
  RingItem sum_item(group, shape.items);
  float next_centres[2] = {centre_of(sum_item, first_channel), centre_of(sum_item, second_channel)};
  FoldedSums<X, Op> sums;
  uint32_t sum_images = 0;
  uint32_t sum_slot = place.ring_begin;
  uint32_t sum_step = 0;
  uint32_t sum_round = 0;
  const auto take_sums = [&] {
    if (sum_round == rounds) return;
    if (sum_step == 0) {
      sums.Start(next_centres, split, Op::SmallestSquare(p.segments[sum_item.segment]));
      sum_images = place.ImagesOf(shape, sum_item);
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
      inside += sum_step + u * shape.rows + row < sum_images ? 1 : 0;
#pragma unroll
      for (int t = 0; t < kTensors; ++t) {
        raw[t][u] = LoadShared(place.SlotOf(sum_slot, t, u));
      }
    }
    sums.Add(raw, inside, sum_slot);
    sum_slot = place.NextSlot(sum_slot);
    sum_step += place.step_images;
    const bool last = sum_step == place.steps_end;
    if (last || sums.Full()) {
      sums.Flush({place.ring_begin, place.ring_end, place.step_bytes, place.granule_stride});
    }
    if (last) {
      const uint32_t buffer = sum_round % kFoldedRingBuffers;
#pragma unroll
      for (int k = 0; k < Op::kSums; ++k) {
        shared.sums[buffer][k][0][thread] = sums.Total(k, 0);
        shared.sums[buffer][k][1][thread] = sums.Total(k, 1);
      }
      if (row == 0 && first_value <= first_channel * shape.spatial) {
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
    copies.Step(p, place);
    WaitForCopies<kInFlight>();
    take_sums();
  }

  RingItem store_item(group, shape.items);
  char* output = nullptr;
  uint32_t store_offset = 0;
  uint32_t store_images = 0;
  typename Op::Direct direct[kElements];
  bool is_direct = false;
  uint32_t store_slot = place.ring_begin;
  uint32_t store_step = 0;
  uint32_t round = 0;
  while (round < rounds) {
    if (store_step == 0) {
      const typename Op::Segment& segment = p.segments[store_item.segment];
      output = static_cast<char*>(Op::Output(segment));
      const uint32_t buffer = round % kFoldedRingBuffers;
      store_offset = place.start_offset + store_item.item * shape.run;
      store_images = place.ImagesOf(shape, store_item);
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
        raw[t][u] = LoadShared(place.SlotOf(store_slot, t, u));
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
      if (store_step + u * shape.rows + row < store_images) {
        StoreGranuleWords<X, kAligned>(
            output + static_cast<int64_t>(store_offset) * kRingGranuleBytes, words[u]);
      }
      store_offset += place.image_step;
    }
    store_slot = place.NextSlot(store_slot);
    store_step += place.step_images;
    if (store_step == place.steps_end) {
      store_step = 0;
      if (++round < rounds) store_item.Advance(shape.groups, shape.items);
    }
    copies.Step(p, place);
    WaitForCopies<kInFlight>();
    take_sums();
  }
  __syncwarp();
  if (is_cluster) {
    ClusterWait();
    ClusterArrive();  // no block leaves while others may write to it
    ClusterWait();
  }
#endif
}

}  // namespace norm_device
