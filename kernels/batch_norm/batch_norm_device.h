// What host code and the BatchNorm kernels agree on: arguments by value and the kernels as
// pointers. Standard library only.
#pragma once

#include <cstdint>

namespace norm_device {

inline constexpr int kBatchThreads = 256;
/// Values a thread holds in registers between the passes over a tile (f64: half of it).
inline constexpr int kBatchTileElements = 16;
inline constexpr int kSpatialTileRows = 8;  // NHWC: rows of a thread's tile
inline constexpr int kWarpChannelThreads = 128;

/// [batch, channels, spatial] with the channel's values counted in order 0 .. values - 1, or
/// [values, channels] (NHWC, [N, C]).
struct BatchShape {
  int64_t batch;
  int64_t channels;
  int64_t spatial;
  int64_t values;  // batch * spatial, of one channel
};

/// A channel's values are cut into chunks of `chunk_values` (the last may be shorter). The sums of
/// a chunk lie at channel * channel_stride + chunk * chunk_stride.
struct ChunkLayout {
  int64_t chunks;
  int64_t chunk_values;
  int64_t channel_stride;
  int64_t chunk_stride;
};

/// Mean and sum of squared deviations of every chunk.
struct MomentsParams {
  const void* x;
  double* means;
  double* m2s;
  BatchShape shape;
  ChunkLayout chunks;
  double smallest_squares;  // below it f32 lost what eps does not hide
  bool aligned;
};

/// Per-channel numbers that the elementwise kernels apply, [channels] each, in the compute type.
struct ChannelCoefficients {
  void* mean;
  void* mean_correction;  // the mean is mean + mean_correction
  void* rstd;
  void* scale;    // weight, 1 without
  void* shift;    // bias, 0 without (forward)
  void* mean_dy;  // of the channel (backward)
  void* mean_dy_low;
  void* mean_dyh;
};

enum class StatisticsSource : uint8_t {
  kBatch,  // merged from the chunks
  kGiven,  // mean and rstd as arguments
  kRunning,
};

/// Statistics, coefficients and running statistics of every channel.
struct ChannelStatisticsParams {
  const double* means;
  const double* m2s;
  ChunkLayout chunks;
  int64_t channels;
  int64_t values;
  const void* given_mean;
  const void* given_rstd;
  const void* weight;
  const void* bias;
  const void* running_mean;
  const void* running_var;
  void* new_running_mean;
  void* new_running_var;
  void* mean;
  void* rstd;
  ChannelCoefficients coefficients;
  double eps;
  double momentum;
  StatisticsSource source;
};

struct NormalizeParams {
  const void* x;
  void* y;
  ChannelCoefficients coefficients;
  BatchShape shape;
  int64_t segment_values;  // of a plane, per item (NCHW)
  bool aligned;
};

/// Sums of dy, dy * d and d over every chunk, d = x - mean.
struct GradientSumsParams {
  const void* dy;
  const void* x;
  ChannelCoefficients coefficients;
  double* sums_dy;
  double* sums_dyd;
  double* sums_d;
  BatchShape shape;
  ChunkLayout chunks;
  bool aligned;
};

/// dweight, dbias and the backward coefficients of every channel from the chunks' sums.
struct ChannelGradientsParams {
  const double* sums_dy;
  const double* sums_dyd;
  const double* sums_d;
  ChunkLayout chunks;
  int64_t channels;
  int64_t values;
  ChannelCoefficients coefficients;
  void* dweight;
  void* dbias;
  bool statistics_of_batch;  // the mean depends on x
};

struct InputGradientParams {
  const void* dy;
  const void* x;
  void* dx;
  ChannelCoefficients coefficients;
  BatchShape shape;
  int64_t segment_values;
  bool aligned;
  bool statistics_of_batch;
};

enum class ChannelMajor : uint8_t {
  kPlanes,  // NCHW, spatial > 1
  kRows,    // NHWC, [N, C]
};

/// Who owns a chunk of a plane-major channel.
enum class ChunkOwner : uint8_t { kWarp, kBlock };

/// Kernels as the runtime launches them. `granule`: consecutive elements per access, a power of two
/// up to MaxGranule.
template <typename X>
const void* MomentsKernel(ChannelMajor major, ChunkOwner owner, int granule);
template <typename Pair>
const void* ChannelStatisticsKernel();
template <typename X>
const void* NormalizeKernel(ChannelMajor major, int granule);
template <typename X>
const void* GradientSumsKernel(ChannelMajor major, ChunkOwner owner, int granule);
template <typename Pair>
const void* ChannelGradientsKernel();
template <typename X>
const void* InputGradientKernel(ChannelMajor major, int granule);

/// Planes: 16 bytes. Rows: a thread holds numbers of every channel of its granule, so at most four.
constexpr int MaxGranule(ChannelMajor major, int element_bytes) {
  const int wide = 16 / element_bytes;
  return major == ChannelMajor::kRows && wide > 4 ? 4 : wide;
}

}  // namespace norm_device
