// The ladder's kernels, float32 throughout. Free of namespace norm.
#pragma once

#include <cstdint>

namespace norm_device {

/// RMSNorm and LayerNorm forward over [rows, hidden_size].
struct RowRungParams {
  const float* x;
  const float* residual;  // fused rungs only
  const float* weight;
  const float* bias;  // LayerNorm only
  float* y;
  float* residual_sum;
  int64_t rows;
  int64_t hidden_size;
  float eps;
};

/// R0: one thread walks one row twice. Blocks of any size.
const void* RmsThreadPerRow();
/// R1: one warp a row. Blocks of whole warps.
const void* RmsWarpPerRow();
/// R2: one block of kTreeThreads a row.
const void* RmsBlockPerRow();

/// L1: a block of one thread a row.
const void* LayerThreadPerRow();
/// L2: one block of kTreeThreads a row, shared memory tree.
const void* LayerSharedTree();
/// L3: one block of whole warps a row, shuffles and one barrier.
const void* LayerWarpShuffle();
/// L4: L3 with 16-byte accesses; rows that start off a 16-byte boundary have a scalar head and tail.
const void* LayerVector();
/// L5 and L6: L4 with the row in registers, for hidden sizes divisible by 4 and up to 16 values a
/// thread; null for more. L6 adds the residual and writes the sum.
const void* LayerRegisters(int vectors_per_thread);
const void* LayerFusedResidual(int vectors_per_thread);
/// What L6 saves: residual_sum = x + residual as a kernel of its own.
const void* AddResidual();

inline constexpr int kTreeThreads = 256;
inline constexpr int kMaxVectorsPerThread = 4;

/// BatchNorm over [batch, channels, spatial], training statistics.
struct ChannelRungParams {
  const float* x;
  const float* dy;
  const float* weight;
  const float* bias;
  const float* saved_mean;  // backward
  const float* saved_rstd;
  float* y;
  float* dx;
  float* dweight;
  float* dbias;
  float* scratch;  // mean and rstd of each channel, or kPartialFloats of each channel and chunk
  int64_t batch;
  int64_t channels;
  int64_t spatial;
  int64_t images_per_chunk;
  int64_t chunks;
  float eps;
};
inline constexpr int kPartialFloats = 3;

/// B6 base: blocks of 256 threads; a block reduces one channel, then one thread normalizes one value.
const void* BatchReduce();
const void* BatchNormalize();
/// B6 fused: one block of 1024 threads a channel, 16-byte accesses where spatial is divisible by 4.
const void* BatchFused();
/// B6 Welford: blocks of 256 threads over (chunk, channel): partial moments; then each block merges
/// its channel's partials and normalizes its chunk.
const void* BatchPartialMoments();
const void* BatchNormalizeChunk();

/// B6 backward in two passes: as BatchReduce and BatchNormalize.
const void* BatchGradientReduce();
const void* BatchGradientApply();
/// B6 backward in one kernel: one block of 1024 threads a channel.
const void* BatchGradientFused();
/// B6 backward in two phases of one cooperative launch of 256-thread blocks, a grid barrier between.
const void* BatchGradientPhases();

}  // namespace norm_device
