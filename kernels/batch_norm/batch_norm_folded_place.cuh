// Which granules of small planes a thread carries, where they wait in shared memory, and their
// copies there.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_ring_math.cuh"

namespace norm_device {

#if NORM_HAVE_RING

/// A thread's slots, for a second look at what waits in them.
struct FoldedSlots {
  uint32_t begin;
  uint32_t end;
  uint32_t step_bytes;
  uint32_t granule_stride;
};

/// Sums in f64 of one channel's values over a tile, from the thread's slots. A call, to keep it out
/// of the loop's registers.
template <typename X, int kUnroll>
__device__ __noinline__ double2 WideSums(FoldedSlots slots, uint32_t slot, int count, int split,
                                         int half, float origin) {
  constexpr int kElements = WideGranule<X>::kElements;
  double sum = 0.0;
  double squares = 0.0;
#pragma unroll 1
  for (int image = 0; image < count; ++image) {
    float values[kElements];
    WideGranule<X>::Widen(LoadShared(slot + image % kUnroll * slots.granule_stride), values);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const double d = static_cast<double>(values[i]) - static_cast<double>(origin);
      const bool own = (i < split) == (half == 0);
      sum += own ? d : 0.0;
      squares = own ? fma(d, d, squares) : squares;
    }
    if (image % kUnroll == kUnroll - 1) {
      slot = slot + slots.step_bytes == slots.end ? slots.begin : slot + slots.step_bytes;
    }
  }
  return make_double2(sum, squares);
}

/// A thread's column of an item, its images and its slots. Threads without a column read the first
/// one's slots, to no effect.
template <typename Op>
struct FoldedPlace {
  static constexpr RingTraits kTraits = Op::kFoldedTraits;
  uint32_t column;
  uint32_t row;
  bool active;
  uint32_t slice;         // images of the block
  uint32_t step_images;   // of a step
  uint32_t steps_end;     // images of all steps of a slice
  uint32_t start_offset;  // of the first granule, in granules
  uint32_t image_step;    // from one granule to the next
  uint32_t granule_stride;
  uint32_t step_bytes;
  uint32_t ring_begin;
  uint32_t ring_end;

  __device__ __forceinline__ FoldedPlace(const RingShape& shape, uint32_t member,
                                         const void* ring) {
    const uint32_t active_threads = shape.rows * shape.run;
    column = threadIdx.x % shape.run;
    row = threadIdx.x / shape.run;
    active = threadIdx.x < active_threads;
    const uint32_t first = member * shape.slice;
    slice = first < shape.images ? min(shape.slice, shape.images - first) : 0;
    step_images = shape.rows * kTraits.unroll;
    steps_end = shape.steps * step_images;
    start_offset = (first + row) * shape.image + column;
    image_step = shape.rows * shape.image;
    granule_stride = active_threads * kRingGranuleBytes;
    step_bytes = granule_stride * kTraits.unroll * kTraits.tensors;
    ring_begin = SharedAddress(ring) + (active ? threadIdx.x : 0) * kRingGranuleBytes;
    ring_end = ring_begin + shape.ring_steps * step_bytes;
  }

  __device__ __forceinline__ uint32_t NextSlot(uint32_t slot) const {
    return slot + step_bytes == ring_end ? ring_begin : slot + step_bytes;
  }
  __device__ __forceinline__ uint32_t SlotOf(uint32_t slot, int tensor, int granule) const {
    return slot + (tensor * kTraits.unroll + granule) * granule_stride;
  }
  /// Images of the thread's column in an item: the last item may hold fewer channels.
  __device__ __forceinline__ uint32_t ImagesOf(const RingShape& shape, const RingItem& item) const {
    const uint32_t channels =
        min(shape.item_channels, shape.channels - item.item * shape.item_channels);
    return active && column * Op::kElements < channels * shape.spatial ? slice : 0;
  }
};

/// Copies a thread's granules into its slots, a step at a time, item after item.
template <typename X, typename Op, bool kAligned>
class FoldedCopies {
  static constexpr int kUnroll = Op::kFoldedTraits.unroll;
  static constexpr int kTensors = Op::kFoldedTraits.tensors;

 public:
  using Params = RingParams<typename Op::Segment>;

  __device__ __forceinline__ FoldedCopies(const Params& p, const FoldedPlace<Op>& place,
                                          uint32_t group, uint32_t rounds)
      : item_(group, p.shape.items), slot_(place.ring_begin), left_(rounds * p.shape.steps) {
    if (rounds > 0) Start(p, place);
  }

  /// The next step's copies, or nothing after the last; a group of copies either way.
  __device__ __forceinline__ void Step(const Params& p, const FoldedPlace<Op>& place) {
    if (left_ > 0) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (step_ + u * p.shape.rows + place.row < images_) {
#pragma unroll
          for (int t = 0; t < kTensors; ++t) {
            const char* source = inputs_[t] + static_cast<int64_t>(offset_) * kRingGranuleBytes;
            const uint32_t slot = place.SlotOf(slot_, t, u);
            if constexpr (kAligned) {
              CopyGranuleAsync(slot, source);
            } else {
              StoreShared(slot, LoadGranuleWords<X, false>(source));
            }
          }
        }
        offset_ += place.image_step;
      }
      --left_;
      slot_ = place.NextSlot(slot_);
      step_ += place.step_images;
      if (step_ == place.steps_end && left_ > 0) {
        step_ = 0;
        item_.Advance(p.shape.groups, p.shape.items);
        Start(p, place);
      }
    }
    CommitCopies();
  }

 private:
  __device__ __forceinline__ void Start(const Params& p, const FoldedPlace<Op>& place) {
    const typename Op::Segment& segment = p.segments[item_.segment];
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
      inputs_[t] = static_cast<const char*>(Op::Input(segment, t));
    }
    offset_ = place.start_offset + item_.item * p.shape.run;
    images_ = place.ImagesOf(p.shape, item_);
  }

  RingItem item_;
  const char* inputs_[kTensors] = {};
  uint32_t offset_ = 0;
  uint32_t images_ = 0;
  uint32_t slot_;
  uint32_t step_ = 0;
  uint32_t left_;  // steps of all items
};

#endif  // NORM_HAVE_RING

}  // namespace norm_device
