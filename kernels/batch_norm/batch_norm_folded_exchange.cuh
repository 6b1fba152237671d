// What the blocks of a group tell each other of small planes: sums of an item's channels from the
// sums of a block's threads, and coefficients from those of the group.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_ring_math.cuh"

namespace norm_device {

#if NORM_HAVE_RING

template <typename Op>
struct FoldedRingShared {
  static constexpr int kThreads = Op::kFoldedTraits.threads;
  double sums[kFoldedRingBuffers][Op::kSums][2][kThreads];  // of both channels of a thread
  typename Op::Coefficients coefficients[kFoldedRingBuffers][kMaxFoldedChannels];
  float centres[kFoldedRingBuffers][kMaxFoldedChannels];
  WarpBarrier summed[kFoldedRingBuffers];  // by the warps that carry data
  WarpBarrier ready[kFoldedRingBuffers];   // coefficients
};

/// Adds up what a block's threads left and shows it to the group. A channel has as many lanes as all
/// of the item's channels leave it; each takes every so many rows.
template <typename Op>
__device__ void PublishFolded(const RingParams<typename Op::Segment>& p,
                              FoldedRingShared<Op>& shared, uint32_t group, uint32_t member,
                              uint32_t rounds) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t rows = Op::kFoldedTraits.threads / p.shape.run;
  uint32_t lanes_of_channel = 32;
  while (32 / lanes_of_channel < p.shape.item_channels) lanes_of_channel /= 2;
  const uint32_t channel = lane / lanes_of_channel;
  const uint32_t first_value = channel * p.shape.spatial;
  const uint32_t first_column = first_value / Op::kElements;
  const uint32_t last_column = (first_value + p.shape.spatial - 1) / Op::kElements;
  const bool starts_inside = first_value % Op::kElements != 0;
  RingItem place(group, p.shape.items);
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint32_t buffer = round % kFoldedRingBuffers;
    const uint32_t channels =
        min(p.shape.item_channels, p.shape.channels - place.item * p.shape.item_channels);
    shared.summed[buffer].WaitPhase(round / kFoldedRingBuffers);
    double sums[Op::kSums] = {};
    if (channel < channels) {
      for (uint32_t row = lane % lanes_of_channel; row < rows; row += lanes_of_channel) {
        const uint32_t first_thread = row * p.shape.run + first_column;
        const uint32_t last_thread = row * p.shape.run + last_column;
#pragma unroll 4
        for (uint32_t thread = first_thread; thread <= last_thread; ++thread) {
          const int half = starts_inside && thread == first_thread ? 1 : 0;
#pragma unroll
          for (int k = 0; k < Op::kSums; ++k) sums[k] += shared.sums[buffer][k][half][thread];
        }
      }
    }
    for (uint32_t offset = lanes_of_channel / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int k = 0; k < Op::kSums; ++k) {
        sums[k] += __shfl_xor_sync(0xFFFFFFFFU, sums[k], offset);
      }
    }
    if (channel < channels && lane % lanes_of_channel == 0) {
      const uint64_t item = group + static_cast<uint64_t>(round) * p.shape.groups;
      const uint64_t block = item * p.shape.group_blocks + member;
      uint64_t* to = p.published + (block * p.shape.item_channels + channel) * Op::kPublished;
      PublishPair(to, sums[0], sums[1]);
      if constexpr (Op::kSums == 3) PublishPair(to + 2, sums[2], 0.0);
    }
    place.Advance(p.shape.groups, p.shape.items);
  }
}

/// A lane per channel adds up the sums of a group and leaves coefficients in shared memory.
template <typename X, typename Op>
__device__ void GatherFolded(const RingParams<typename Op::Segment>& p,
                             FoldedRingShared<Op>& shared, uint32_t group, uint32_t member,
                             uint32_t rounds) {
  const uint32_t lane = threadIdx.x % 32;
  RingItem place(group, p.shape.items);
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint32_t buffer = round % kFoldedRingBuffers;
    const uint32_t channel = place.item * p.shape.item_channels + lane;
    const bool has_channel = lane < p.shape.item_channels && channel < p.shape.channels;
    const typename Op::Segment& segment = p.segments[place.segment];
    typename Op::Parameters parameters = {};
    typename Op::Coefficients coefficients = {};
    typename Op::Statistics statistics = {};
    if (has_channel) {
      parameters = Op::Load(segment, channel, p.weight_like_x, member == 0);
      const uint64_t item = group + static_cast<uint64_t>(round) * p.shape.groups;
      const uint64_t block_words = p.shape.item_channels * Op::kPublished;
      const uint64_t* from =
          p.published + item * p.shape.group_blocks * block_words + lane * Op::kPublished;
      double sums[Op::kSums] = {};
      for (int block = 0; block < p.shape.group_blocks; ++block) {
        double parts[4] = {};
        bool complete;
        do {
          complete = TryReadPair(from + block * block_words, parts[0], parts[1]);
          if constexpr (Op::kSums == 3) {
            complete &= TryReadPair(from + block * block_words + 2, parts[2], parts[3]);
          }
        } while (!complete);
#pragma unroll
        for (int k = 0; k < Op::kSums; ++k) sums[k] += parts[k];
      }
      shared.summed[buffer].WaitPhase(round / kFoldedRingBuffers);  // for the centres
      coefficients =
          Op::Finish(parameters, sums, shared.centres[buffer][lane], p.shape.share, statistics);
      shared.coefficients[buffer][lane] = coefficients;
    }
    __syncwarp();
    if (lane == 0) shared.ready[buffer].Arrive();
    if (has_channel && member == 0) {
      Op::Write(segment, channel, p.weight_like_x, p.shape.values, parameters, coefficients,
                statistics);
    }
    place.Advance(p.shape.groups, p.shape.items);
  }
}

#endif  // NORM_HAVE_RING

}  // namespace norm_device
