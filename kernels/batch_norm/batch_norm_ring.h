// What host code and the resident BatchNorm kernels agree on. A group of blocks owns one item (a
// channel, or a few channels whose planes lie side by side) at a time and keeps it in shared memory
// between its statistics and its normalization, so that each input is read once. Standard library
// only.
#pragma once

#include <cstdint>

namespace norm_device {

inline constexpr int kRingGranuleBytes = 16;
/// Requests of one shape that one launch serves.
inline constexpr int kRingSegments = 16;
/// Items whose sums or coefficients may wait in shared memory at once.
inline constexpr int kRingBuffers = 8;

/// Threads that carry data, granules per thread and step, steps of loads in flight, and tensors
/// that are read. The bits of a result depend on all but `in_flight`.
struct RingTraits {
  int threads;
  int unroll;
  int in_flight;
  int tensors;

  constexpr int StepGranules() const { return threads * unroll; }
  constexpr int StepBytes() const { return threads * unroll * tensors * kRingGranuleBytes; }
};
inline constexpr RingTraits kForwardRing = {384, 2, 3, 1};
inline constexpr RingTraits kBackwardRing = {256, 2, 2, 2};
/// Of the kernel for small planes: its threads hold more numbers.
inline constexpr RingTraits kFoldedForwardRing = {384, 2, 3, 1};
inline constexpr RingTraits kFoldedBackwardRing = {256, 2, 2, 2};
/// Beside the threads that carry data: one warp adds up a block's sums and publishes them, one
/// gathers those of the group.
inline constexpr int kRingHelperThreads = 64;

/// The same of the kernel for small planes, and the channels that its items hold at most.
inline constexpr int kFoldedRingBuffers = 2;
/// Items whose sums from other blocks may wait.
inline constexpr int kFoldedReceived = 2 * kFoldedRingBuffers;
inline constexpr int kMaxFoldedChannels = 16;

/// How items lie in memory and how a group shares one. Counts are of granules of 16 bytes.
struct RingShape {
  uint32_t items;          // of one segment
  uint32_t item_channels;  // of an item
  uint32_t channels;       // of a segment; the last item may hold fewer than item_channels
  uint32_t spatial;        // elements of a plane
  uint32_t run;            // granules of an item that lie side by side, once per image
  uint32_t image;          // from an item's run in one image to that in the next
  uint32_t images;
  uint32_t rows;   // images that threads carry side by side, where runs are narrow
  uint32_t slice;  // granules (images, where runs are narrow) of a block
  int32_t group_blocks;
  int32_t groups;
  int32_t steps;       // of a slice
  int32_t ring_steps;  // that shared memory holds
  double values;       // elements of a channel
  double share;        // 1 / values
};

struct ForwardRingSegment {
  const void* x;
  void* y;
  const void* weight;
  const void* bias;
  const float* running_mean;
  const float* running_var;
  float* new_running_mean;
  float* new_running_var;
  float* mean;
  float* rstd;
  double eps;
  double momentum;
};

struct BackwardRingSegment {
  const void* x;
  const void* dy;
  void* dx;
  const void* weight;
  const float* mean;
  const float* rstd;
  void* dweight;
  void* dbias;
};

template <typename Segment>
struct RingParams {
  RingShape shape;
  Segment segments[kRingSegments];
  int32_t segment_count;
  bool weight_like_x;  // else f32
  /// Sums that blocks publish: [segment, item, block of the group, sums of the item].
  uint64_t* published;
};

/// Doubles that a block publishes per channel: a power of two.
inline constexpr int kForwardRingSums = 2;
inline constexpr int kBackwardRingSums = 4;

/// `aligned`: every tensor lies at a multiple of 16. X is f32, f16 or bf16. A plane is a whole number
/// of granules; an item is a channel.
template <typename X>
const void* PlaneRingForwardKernel(bool aligned);
template <typename X>
const void* PlaneRingBackwardKernel(bool aligned);

/// A plane has at least a granule's values; an item is up to kMaxFoldedChannels channels whose
/// planes together are whole granules.
template <typename X>
const void* FoldedRingForwardKernel(bool aligned);
template <typename X>
const void* FoldedRingBackwardKernel(bool aligned);

}  // namespace norm_device
