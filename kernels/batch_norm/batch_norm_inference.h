// What host code and the inference kernels agree on: forward, and backward without dweight and
// dbias, which is the same with zero mean and bias. Standard library only.
#pragma once

#include <cstdint>

namespace norm_device {

/// n / divisor for n < 2^31 and divisor >= 2, as a product and a shift.
struct Divisor {
  uint32_t factor;
  uint32_t shift;
};

/// Of a divisor below 2 whatever it is: not for use.
constexpr Divisor MakeDivisor(uint32_t divisor) {
  if (divisor < 2) return {};
  uint32_t bits = 0;
  while ((uint64_t{1} << bits) < divisor) ++bits;
  return {static_cast<uint32_t>((uint64_t{1} << (31 + bits)) / divisor + 1), bits - 1};
}

/// A power of four, and its root.
inline constexpr float kInferenceScale = 0x1p100F;
inline constexpr float kInferenceRootScale = 0x1p50F;

/// eps as f32 holds it.
struct InferenceEps {
  float high;
  float low;     // what `high` leaves of it
  float scaled;  // kInferenceScale times of it
};

constexpr InferenceEps MakeInferenceEps(double eps) {
  InferenceEps parts = {};
  parts.high = static_cast<float>(eps);
  parts.low = static_cast<float>(eps - static_cast<double>(parts.high));
  // For sums that are too small as they are.
  if (eps < 1.0) parts.scaled = static_cast<float>(eps * static_cast<double>(kInferenceScale));
  return parts;
}

/// What applies to a channel's values. A null mean or bias acts as 0, a null weight as 1.
struct InferenceChannels {
  const float* mean;
  const float* variance;
  const void* weight;
  const void* bias;
  float* rstd;  // written if not null
  InferenceEps eps;
};

/// Threads of a block, and granules of 16 bytes of each. Small blocks: stretches of 4 KiB that are
/// read and written side by side are faster than long ones.
inline constexpr int kPlaneThreads = 64;
inline constexpr int kPlaneGranules = 4;
inline constexpr int kPlaneBlockGranules = kPlaneThreads * kPlaneGranules;

/// Threads of a block over images, each with a granule of kImagesOfBlock images.
inline constexpr int kImageThreads = 64;
template <int kElementBytes>
inline constexpr int kImagesOfBlock = kElementBytes == 4 ? 4 : 8;

/// The same of the kernel for rows, and the granules that a block covers side by side at most: a
/// power of two. Threads of two-byte elements keep the numbers of twice as many channels, so they
/// take more rows with them; tall blocks of them twice as many again.
inline constexpr int kRowThreads = 64;
template <int kElementBytes>
inline constexpr int kRowGranules = kElementBytes == 4 ? 4 : 8;
inline constexpr int kTallRowGranules = 16;
template <int kElementBytes>
inline constexpr int kRowColumns = kElementBytes == 4 ? 16 : 8;
/// That registers are kept free for.
constexpr int RowBlocksPerSm(int granules) { return granules == kTallRowGranules ? 8 : 12; }

/// Whole images of a request, of fewer than 2^31 - kMaxPlaneBlockElements elements in all.
struct PlaneInferenceSegment {
  const void* source;
  void* destination;
  InferenceChannels channels;
  uint32_t elements;
};
inline constexpr int kMaxPlaneBlockElements = kPlaneBlockGranules * 8;
inline constexpr int kInferenceSegments = 16;

/// [batch, channels, spatial]. Requests of equal channels, spatial size and dtypes, one for every
/// blockIdx.y.
struct PlaneInferenceParams {
  PlaneInferenceSegment segments[kInferenceSegments];
  uint32_t channels;
  uint32_t spatial;  // at least the elements of a granule, and 2
  uint32_t image;    // channels * spatial
  Divisor by_spatial;
  Divisor by_image;
  uint32_t image_blocks;    // over images: blocks side by side
  Divisor by_image_blocks;  // where there are several
  bool weight_like_x;       // else f32
};

/// [rows, channels]
struct RowInferenceParams {
  const void* source;
  void* destination;
  InferenceChannels channels;
  int64_t rows;
  uint32_t channel_count;
  uint32_t column_bits;  // log2 of the granules that a block covers side by side
  uint32_t slices;       // blocks side by side
  Divisor by_slices;     // where there are several
  bool weight_like_x;
};

/// X: f32, f16, bf16. `aligned`: source and destination are multiples of 16.
/// `whole_planes`: a plane is a whole number of granules.
template <typename X>
const void* PlaneInferenceKernel(bool whole_planes, bool aligned);
/// Over images of whole granules; aligned.
template <typename X>
const void* ImageInferenceKernel();
/// `wide`: granules of 16 bytes, aligned, and whole ones in a row; else of one element. `tall`: of
/// wide granules of two-byte elements only.
template <typename X>
const void* RowInferenceKernel(bool wide, bool tall);

}  // namespace norm_device
