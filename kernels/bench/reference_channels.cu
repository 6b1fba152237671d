// BatchNorm in float64. Blocks of x are channels, blocks of y chunks of a channel; partial sums meet in
// float64 atomics, the mean first, then centred squares.
#include "bench/reference_check.cuh"

namespace norm_device {
namespace {

using Params = ChannelReferenceParams;

__device__ int64_t PerChannel(const Params& p) { return p.batch * p.spatial; }

/// Offset of the `i`th value of a channel.
__device__ int64_t Offset(const Params& p, int64_t channel, int64_t i) {
  if (p.channels_last != 0) return i * p.channels + channel;
  const int64_t image = i / p.spatial;
  return (image * p.channels + channel) * p.spatial + (i - image * p.spatial);
}

/// Calls visit(offset) for this thread's share of the block's channel.
template <typename Visit>
__device__ void ForShare(const Params& p, int64_t channel, Visit visit) {
  const int64_t stride = static_cast<int64_t>(gridDim.y) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; i < PerChannel(p);
       i += stride) {
    visit(Offset(p, channel, i));
  }
}

__global__ void Sum(const __grid_constant__ Params p) {
  __shared__ double scratch[kReferenceThreads];
  const int64_t channel = blockIdx.x;
  double sum = 0.0;
  ForShare(p, channel, [&](int64_t i) { sum += LoadAny(p.x, i); });
  sum = BlockSum(sum, scratch);
  if (threadIdx.x == 0) {
    atomicAdd(&p.channel_mean[channel], sum / static_cast<double>(PerChannel(p)));
  }
}

__global__ void Squares(const __grid_constant__ Params p) {
  __shared__ double scratch[kReferenceThreads];
  const int64_t channel = blockIdx.x;
  const double mean = p.channel_mean[channel];
  double squares = 0.0;
  ForShare(p, channel, [&](int64_t i) {
    const double d = LoadAny(p.x, i) - mean;
    squares += d * d;
  });
  squares = BlockSum(squares, scratch);
  if (threadIdx.x == 0) atomicAdd(&p.channel_m2[channel], squares);
}

__global__ void Finish(const __grid_constant__ Params p) {
  const int64_t channel = GlobalThread();
  if (channel >= p.channels) return;
  double variance = p.channel_m2[channel] / static_cast<double>(PerChannel(p));
  if (p.training == 0) {
    p.channel_mean[channel] = LoadAny(p.running_mean, channel);
    variance = LoadAny(p.running_var, channel);
  }
  p.channel_rstd[channel] = 1.0 / sqrt(variance + p.eps);
}

__global__ void GradientSums(const __grid_constant__ Params p) {
  __shared__ double scratch[kReferenceThreads];
  const int64_t channel = blockIdx.x;
  const double mean = p.channel_mean[channel];
  const double rstd = p.channel_rstd[channel];
  double sums[4] = {};
  double largest = 0.0;
  ForShare(p, channel, [&](int64_t i) {
    const double dy = LoadAny(p.dy, i);
    const double term = dy * (LoadAny(p.x, i) - mean) * rstd;
    sums[0] += term;
    sums[1] += dy;
    sums[2] += fabs(term);
    sums[3] += fabs(dy);
    largest = fmax(largest, fabs(dy));
  });
  for (int k = 0; k < 4; ++k) {
    const double sum = BlockSum(sums[k], scratch);
    if (threadIdx.x == 0) atomicAdd(&p.channel_sums[k * p.channels + channel], sum);
  }
  largest = BlockMax(largest, scratch);
  if (threadIdx.x == 0) AtomicMaxNonNegative(&p.channel_largest[channel], largest);
}

__global__ void CheckElements(const __grid_constant__ Params p) {
  const int64_t count = PerChannel(p) * p.channels;
  const auto n = static_cast<double>(PerChannel(p));
  const bool backward = p.dx.data != nullptr;
  for (int64_t i = GlobalThread(); i < count; i += GlobalThreads()) {
    const int64_t channel = p.channels_last != 0 ? i % p.channels : i / p.spatial % p.channels;
    const double rstd = p.channel_rstd[channel];
    const double normalized = (LoadAny(p.x, i) - p.channel_mean[channel]) * rstd;
    const double weight = LoadOr(p.weight, channel, 1.0);
    if (!backward) {
      const double bias = LoadOr(p.bias, channel, 0.0);
      const double want = normalized * weight + bias;
      const double scale = p.y.element == Element::kF32 ? 5.0 * fmax(1.0, fabs(want))
                                                        : fabs(normalized * weight) + fabs(bias);
      Judge(p.checks, kCheckedY, LoadAny(p.y, i), want, Allowed(p.y.element, want, scale, 1e-6));
      continue;
    }
    const double mean_term = p.channel_sums[channel] / n;
    const double mean_dy = p.channel_sums[p.channels + channel] / n;
    const double want = weight * rstd * (LoadAny(p.dy, i) - mean_dy - normalized * mean_term);
    const double scale = fabs(weight) * rstd * p.channel_largest[channel];
    Judge(p.checks, kCheckedDx, LoadAny(p.dx, i), want, Allowed(p.dx.element, want, scale, 5e-6));
  }
  if (GlobalThread() == 0) CountValues(p.checks, backward ? kCheckedDx : kCheckedY, count);
}

__device__ void CheckValue(const Params& p, const AnyTensor& tensor, Checked output,
                           int64_t channel, double want, double scale, double relative) {
  if (tensor.data == nullptr) return;
  if (channel == 0) CountValues(p.checks, output, p.channels);
  Judge(p.checks, output, LoadAny(tensor, channel), want,
        Allowed(tensor.element, want, scale, relative));
}

__global__ void CheckPerChannel(const __grid_constant__ Params p) {
  const int64_t c = GlobalThread();
  if (c >= p.channels) return;
  const auto n = static_cast<double>(PerChannel(p));
  const double mean = p.channel_mean[c];
  const double rstd = p.channel_rstd[c];
  CheckValue(p, p.mean, kCheckedMean, c, mean, fabs(mean) + 1.0 / rstd, 1e-6);
  CheckValue(p, p.rstd, kCheckedRstd, c, rstd, rstd, 5e-6);
  const double unbiased = p.channel_m2[c] / (n - 1.0);
  const auto running = [&](const AnyTensor& before, double now) {
    return (1.0 - p.momentum) * LoadOr(before, c, 0.0) + p.momentum * now;
  };
  CheckValue(p, p.new_running_mean, kCheckedNewRunningMean, c, running(p.running_mean, mean),
             fabs(LoadOr(p.running_mean, c, 0.0)) + fabs(mean), 5e-6);
  CheckValue(p, p.new_running_var, kCheckedNewRunningVar, c, running(p.running_var, unbiased),
             fabs(LoadOr(p.running_var, c, 0.0)) + unbiased, 5e-6);
  const auto sum = [&](int k) { return p.channel_sums[k * p.channels + c]; };
  CheckValue(p, p.dweight, kCheckedDweight, c, sum(0), sum(2), 1e-6);
  CheckValue(p, p.dbias, kCheckedDbias, c, sum(1), sum(3), 1e-6);
}

}  // namespace

const void* ChannelSumReference() { return reinterpret_cast<const void*>(Sum); }
const void* ChannelSquaresReference() { return reinterpret_cast<const void*>(Squares); }
const void* ChannelFinishReference() { return reinterpret_cast<const void*>(Finish); }
const void* ChannelGradientSums() { return reinterpret_cast<const void*>(GradientSums); }
const void* CheckChannelElements() { return reinterpret_cast<const void*>(CheckElements); }
const void* CheckChannels() { return reinterpret_cast<const void*>(CheckPerChannel); }

}  // namespace norm_device
