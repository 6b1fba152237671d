// What the blocks of a group tell each other of small planes: sums of an item's channels from the
// sums of a block's threads, and coefficients from those of the group. A group of several blocks is
// a cluster, whose blocks write into each other's shared memory.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_ring_math.cuh"
#include "primitives/cluster.cuh"
#include "primitives/transfer_barrier.cuh"

namespace norm_device {

#if NORM_HAVE_RING

template <typename Op>
struct FoldedRingShared {
  static constexpr int kThreads = Op::kFoldedTraits.threads;
  double sums[kFoldedRingBuffers][Op::kSums][2][kThreads];  // of both channels of a thread
  typename Op::Coefficients coefficients[kFoldedRingBuffers][kMaxFoldedChannels];
  float centres[kFoldedRingBuffers][kMaxFoldedChannels];
  WarpBarrier summed[kFoldedRingBuffers];     // by the warps that carry data
  WarpBarrier ready[kFoldedRingBuffers];      // coefficients
  TransferBarrier received[kFoldedReceived];  // sums of all blocks of a group of several
  WarpBarrier published[kFoldedReceived];     // sums of a group of one

  /// By one thread; a barrier of the cluster follows.
  __device__ void Init() {
    for (int i = 0; i < kFoldedRingBuffers; ++i) {
      summed[i].Init(kThreads / 32);
      ready[i].Init(1);
    }
    for (int i = 0; i < kFoldedReceived; ++i) {
      received[i].Init(1);
      published[i].Init(1);
    }
    TransferBarrier::FenceInit();
  }
};

/// Where a block's sums of a channel of the item go: [kFoldedReceived, block, channel, sum]. A block
/// that publishes an item has begun to store the one before the last, so its group has all sums of
/// the item four back: no place is written that is still read.
template <typename Op>
__device__ __forceinline__ double* ReceivedSums(double* received, const RingShape& shape,
                                                uint32_t round, uint32_t block, uint32_t channel) {
  const uint32_t place = round % kFoldedReceived * shape.group_blocks + block;
  return received + (place * shape.item_channels + channel) * Op::kSums;
}

/// Adds up what a block's threads left and shows it to the group. A channel has as many lanes as all
/// of the item's channels leave it; each takes every so many of its columns, row by row.
template <typename Op>
__device__ void PublishFolded(const RingParams<typename Op::Segment>& p,
                              FoldedRingShared<Op>& shared, double* received, uint32_t group,
                              uint32_t member, uint32_t rounds) {
  constexpr int kSumStride = 2 * Op::kFoldedTraits.threads;
  const RingShape& shape = p.shape;
  const uint32_t lane = threadIdx.x % 32;
  uint32_t lanes = 32;  // of a channel
  while (32 / lanes < shape.item_channels) lanes /= 2;
  const uint32_t channel = lane / lanes;
  const uint32_t own = lane % lanes;
  const uint32_t first_value = channel * shape.spatial;
  const uint32_t first_column = first_value / Op::kElements;
  const uint32_t columns = (first_value + shape.spatial - 1) / Op::kElements - first_column + 1;
  const uint32_t first_half = first_value % Op::kElements != 0 ? 1 : 0;
  const uint32_t entries = columns * shape.rows;
  RingItem place(group, shape.items);
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint32_t buffer = round % kFoldedRingBuffers;
    const uint32_t channels =
        min(shape.item_channels, shape.channels - place.item * shape.item_channels);
    shared.summed[buffer].WaitPhase(round / kFoldedRingBuffers);
    double sums[Op::kSums] = {};
    if (channel < channels) {
      uint32_t column = own;
      uint32_t row_thread = first_column;
#pragma unroll 1
      for (uint32_t entry = own; entry < entries; entry += lanes) {
        while (column >= columns) {
          column -= columns;
          row_thread += shape.run;
        }
        const uint32_t half = column == 0 ? first_half : 0;
        const double* from = &shared.sums[buffer][0][half][row_thread + column];
#pragma unroll
        for (int k = 0; k < Op::kSums; ++k) sums[k] += from[k * kSumStride];
        column += lanes;
      }
    }
#pragma unroll 1
    for (uint32_t offset = lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int k = 0; k < Op::kSums; ++k) {
        sums[k] += __shfl_xor_sync(0xFFFFFFFFU, sums[k], offset);
      }
    }
    double* to = ReceivedSums<Op>(received, shape, round, member, channel);
    if (shape.group_blocks == 1) {
      if (channel < channels && own == 0) {
#pragma unroll
        for (int k = 0; k < Op::kSums; ++k) to[k] = sums[k];
      }
      __syncwarp();
      if (lane == 0) shared.published[round % kFoldedReceived].Arrive();
    } else if (channel < channels) {
      for (uint32_t peer = own; peer < shape.group_blocks; peer += lanes) {
#pragma unroll
        for (int k = 0; k < Op::kSums; ++k) {
          SendToPeer(to + k, shared.received[round % kFoldedReceived], static_cast<int>(peer),
                     static_cast<uint64_t>(__double_as_longlong(sums[k])));
        }
      }
    }
    place.Advance(shape.groups, shape.items);
  }
}

/// A lane per channel adds up the sums of a group and leaves coefficients in shared memory.
template <typename X, typename Op>
__device__ void GatherFolded(const RingParams<typename Op::Segment>& p,
                             FoldedRingShared<Op>& shared, double* received, uint32_t group,
                             uint32_t member, uint32_t rounds) {
  const RingShape& shape = p.shape;
  const uint32_t lane = threadIdx.x % 32;
  RingItem place(group, shape.items);
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint32_t buffer = round % kFoldedRingBuffers;
    const uint32_t channel = place.item * shape.item_channels + lane;
    const uint32_t channels =
        min(shape.item_channels, shape.channels - place.item * shape.item_channels);
    const bool has_channel = lane < channels;
    const typename Op::Segment& segment = p.segments[place.segment];
    typename Op::Parameters parameters = {};
    typename Op::Coefficients coefficients = {};
    typename Op::Statistics statistics = {};
    const uint32_t phase = round / kFoldedReceived;
    TransferBarrier& received_all = shared.received[round % kFoldedReceived];
    if (lane == 0 && shape.group_blocks > 1) {
      received_all.ArriveExpecting(
          static_cast<int>(shape.group_blocks * channels * Op::kSums * sizeof(double)));
    }
    if (has_channel) parameters = Op::Load(segment, channel, p.weight_like_x, member == 0);
    shared.summed[buffer].WaitPhase(round / kFoldedRingBuffers);  // for the centres
    __syncwarp();
    if (shape.group_blocks > 1) {
      received_all.Wait(phase % 2);
    } else {
      shared.published[round % kFoldedReceived].WaitPhase(phase);
    }
    if (has_channel) {
      double sums[Op::kSums] = {};
      for (uint32_t block = 0; block < shape.group_blocks; ++block) {
        const double* from = ReceivedSums<Op>(received, shape, round, block, lane);
#pragma unroll
        for (int k = 0; k < Op::kSums; ++k) sums[k] += from[k];
      }
      coefficients =
          Op::Finish(parameters, sums, shared.centres[buffer][lane], shape.share, statistics);
      shared.coefficients[buffer][lane] = coefficients;
    }
    __syncwarp();
    if (lane == 0) shared.ready[buffer].Arrive();
    if (has_channel && member == 0) {
      Op::Write(segment, channel, p.weight_like_x, shape.values, parameters, coefficients,
                statistics);
    }
    place.Advance(shape.groups, shape.items);
  }
}

#endif  // NORM_HAVE_RING

}  // namespace norm_device
