#include "bench/traffic.h"

#include <algorithm>

namespace norm::bench {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

Traffic RowTraffic(const BenchCase& c) {
  const int64_t rows = c.shape[0];
  const int64_t hidden_size = c.shape[1];
  const auto element = static_cast<int64_t>(DTypeSize(c.dtype));
  const auto statistic = static_cast<int64_t>(DTypeSize(StatisticsDType(c.dtype)));
  const int64_t tensor = rows * hidden_size * element;
  const int64_t parameter = hidden_size * static_cast<int64_t>(DTypeSize(c.weight_dtype));
  const int64_t parameters = parameter * (c.op == Op::kLayerNorm ? 2 : 1);
  const int64_t statistics = rows * statistic * (c.op == Op::kLayerNorm ? 2 : 1);
  const int64_t residual = c.variant == Variant::kResidual ? tensor : 0;
  if (c.direction == BenchDirection::kBackward) {
    return {2 * tensor + residual + parameter + statistics, tensor + parameters};
  }
  switch (c.variant) {
    case Variant::kFp8:
      return {tensor + parameters, rows * hidden_size + statistics};
    case Variant::kFp8Row:
    case Variant::kInt8:
      return {tensor + parameters, rows * hidden_size + rows * 4 + statistics};
    default:
      return {tensor + residual + parameters, tensor + residual + statistics};
  }
}

Traffic ChannelTraffic(const BenchCase& c) {
  const int64_t channels = c.shape[1];
  const int64_t tensor = ElementCount(c) * static_cast<int64_t>(DTypeSize(c.dtype));
  const int64_t parameter = channels * static_cast<int64_t>(DTypeSize(c.weight_dtype));
  const int64_t statistic = channels * static_cast<int64_t>(DTypeSize(StatisticsDType(c.dtype)));
  switch (c.direction) {
    case BenchDirection::kForward:  // running statistics in and out, batch mean and rstd out
      return {tensor + 2 * parameter + 2 * statistic, tensor + 4 * statistic};
    case BenchDirection::kInference:
      return {tensor + 2 * parameter + 2 * statistic, tensor};
    case BenchDirection::kBackward:
      return {2 * tensor + parameter + 2 * statistic, tensor + 2 * parameter};
  }
  return {};
}

}  // namespace

Traffic TrafficOf(const BenchCase& bench_case) {
  return bench_case.op == Op::kBatchNorm ? ChannelTraffic(bench_case) : RowTraffic(bench_case);
}

double FlopsPerElement(const BenchCase& bench_case) {
  double flops = 0.0;
  const bool backward = bench_case.direction == BenchDirection::kBackward;
  switch (bench_case.op) {
    case Op::kRmsNorm:
      // forward: x*x, sum; *rstd, *weight.  backward: h; g; g*h, sum; g - h*m, *rstd; dy*h, sum
      flops = backward ? 9.0 : 4.0;
      break;
    case Op::kLayerNorm:
      // forward: sum; x-mean, square, sum; x-mean, *rstd, *weight, +bias.
      // backward: h (2); g; sum g; g*h, sum; g - m - h*n (3), *rstd; dy*h, sum; sum dy
      flops = backward ? 13.0 : 8.0;
      break;
    case Op::kBatchNorm:
      // inference: x-mean, *rstd, *weight, +bias.  backward: h (2); sum dy; dy*h, sum; dx (4)
      flops = backward ? 9.0 : bench_case.direction == BenchDirection::kInference ? 4.0 : 8.0;
      break;
  }
  switch (bench_case.variant) {
    case Variant::kResidual:
      return flops + 1.0;
    case Variant::kFp8:
      return flops + 1.0;  // *scale
    case Variant::kFp8Row:
    case Variant::kInt8:
      return flops + 2.0;  // largest magnitude, *scale
    default:
      return flops;
  }
}

double FloorUs(const BenchCase& bench_case, const DeviceCeilings& ceilings) {
  const double memory_us =
      static_cast<double>(TrafficOf(bench_case).total_bytes()) / (ceilings.copy_gbs * 1e3);
  double arithmetic_us = 0.0;
  if (ceilings.f32_tflops > 0.0) {
    arithmetic_us = static_cast<double>(ElementCount(bench_case)) * FlopsPerElement(bench_case) /
                    (ceilings.f32_tflops * 1e6);
  }
  return ceilings.launch_us + std::max(memory_us, arithmetic_us);
}

int F32LanesPerSm(int compute_major, int compute_minor) {
  return compute_major == 7 || (compute_major == 8 && compute_minor == 0) ? 64 : 128;
}

double F32PeakTflops(int sm_count, int f32_lanes_per_sm, double clock_ghz) {
  return sm_count * f32_lanes_per_sm * 2.0 * clock_ghz * 1e-3;
}

double RidgePoint(double f32_tflops, double gbs) { return f32_tflops * 1e3 / gbs; }

std::optional<double> Bar(const BenchCase& bench_case) {
  const int64_t bytes = TrafficOf(bench_case).total_bytes();
  const bool backward = bench_case.direction == BenchDirection::kBackward;
  if (bench_case.variant == Variant::kGraph) return std::nullopt;
  if (bench_case.op == Op::kBatchNorm) {
    if (bench_case.direction == BenchDirection::kInference) return 0.93;
    if (bytes > 64 * kMiB) return 0.70;
    return std::nullopt;
  }
  const bool odd = bench_case.shape[1] % 2 != 0;
  if (odd) {
    if (bytes > 64 * kMiB) return backward ? 0.75 : 0.85;
    return std::nullopt;
  }
  if (backward) {
    if (bytes > 64 * kMiB) return 0.85;
    if (bytes > 8 * kMiB) return 0.70;
    return std::nullopt;
  }
  if (bench_case.variant != Variant::kPlain) {
    if (bytes > 64 * kMiB) return 0.90;
    return std::nullopt;
  }
  if (bytes > 8 * kMiB) return 0.93;
  return std::nullopt;
}

}  // namespace norm::bench
