// Walking a BatchNorm tensor: a channel's values in planes (NCHW), and elementwise passes over
// planes and over rows.
#pragma once

#include <cstdint>
#include <type_traits>

#include "batch_norm/batch_norm_device.h"
#include "primitives/element_access.cuh"

namespace norm_device {

/// Position of a channel's value number `index` in the tensor, advanced in fixed steps without
/// dividing.
class PlaneCursor {
 public:
  __device__ PlaneCursor(const BatchShape& shape, int64_t channel, int64_t index, int64_t step)
      : spatial_(shape.spatial),
        plane_stride_(shape.channels * shape.spatial),
        position_(index % shape.spatial),
        plane_(channel * shape.spatial + index / shape.spatial * plane_stride_),
        step_position_(step % shape.spatial),
        step_planes_(step / shape.spatial * plane_stride_) {}

  __device__ int64_t offset() const { return plane_ + position_; }
  __device__ void Advance() {
    plane_ += step_planes_;
    position_ += step_position_;
    if (position_ >= spatial_) {
      position_ -= spatial_;
      plane_ += plane_stride_;
    }
  }

 private:
  int64_t spatial_;
  int64_t plane_stride_;
  int64_t position_;
  int64_t plane_;
  int64_t step_position_;
  int64_t step_planes_;
};

/// Calls apply(channel, offset) for every granule of V elements of [batch * channels, spatial]
/// planes. Threads x share a segment of a plane; threads y take segments side by side.
/// begin(channel) is called before the first granule of a segment.
template <int V, typename Begin, typename Apply>
__device__ void ForEachPlaneGranule(const BatchShape& shape, int64_t segment_values, Begin&& begin,
                                    Apply&& apply) {
  const int64_t segments = (shape.spatial - 1) / segment_values + 1;
  const int64_t items = shape.batch * shape.channels * segments;
  const int64_t item_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; item < items;
       item += item_step) {
    const int64_t plane = item / segments;
    const int64_t first = item % segments * segment_values;
    const int64_t end = min(shape.spatial, first + segment_values);
    begin(plane % shape.channels);
    for (int64_t position = first + threadIdx.x * V; position < end;
         position += static_cast<int64_t>(blockDim.x) * V) {
      apply(plane * shape.spatial + position);
    }
  }
}

/// Per-channel numbers of V consecutive channels (rows) or of one channel (planes, V = 1).
template <typename C, int V>
struct ChannelValues {
  C values[V];

  __device__ void Load(const void* source, int64_t channel) {
#pragma unroll
    for (int i = 0; i < V; ++i) values[i] = static_cast<const C*>(source)[channel + i];
  }
  /// Of the granule's element i.
  __device__ C operator[](int i) const { return values[V == 1 ? 0 : i]; }
};

/// Returns select(granule as a compile-time constant), or null where X has no such granule.
template <typename X, typename Select>
const void* SelectGranule(ChannelMajor major, int granule, Select&& select) {
  constexpr int kPlanes = MaxGranule(ChannelMajor::kPlanes, sizeof(StorageOf<X>));
  if (granule > MaxGranule(major, sizeof(StorageOf<X>))) return nullptr;
  switch (granule) {
    case 1:
      return select(std::integral_constant<int, 1>());
    case 2:
      return select(std::integral_constant<int, 2>());
    case 4:
      if constexpr (kPlanes >= 4) return select(std::integral_constant<int, 4>());
      break;
    case 8:
      if constexpr (kPlanes >= 8) return select(std::integral_constant<int, 8>());
      break;
    default:
      break;
  }
  return nullptr;
}

}  // namespace norm_device
