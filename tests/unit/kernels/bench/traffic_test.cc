#include "bench/traffic.h"

#include <gtest/gtest.h>

namespace norm::bench {
namespace {

BenchCase Rows(Op op, BenchDirection direction, DType dtype, int64_t rows, int64_t hidden_size) {
  BenchCase bench_case;
  bench_case.op = op;
  bench_case.direction = direction;
  bench_case.dtype = bench_case.weight_dtype = dtype;
  bench_case.shape = {rows, hidden_size};
  return bench_case;
}

BenchCase Channels(BenchDirection direction) {
  BenchCase bench_case;
  bench_case.op = Op::kBatchNorm;
  bench_case.direction = direction;
  bench_case.dtype = DType::kBF16;
  bench_case.weight_dtype = DType::kF32;
  bench_case.shape = {2, 3, 5, 7};
  bench_case.layout = BenchLayout::kNchw;
  return bench_case;
}

TEST(TrafficTest, CountsEachTensorOfARowOpOnce) {
  // x, weight in; y, rstd out.
  EXPECT_EQ(
      TrafficOf(Rows(Op::kRmsNorm, BenchDirection::kForward, DType::kF32, 10, 100)).total_bytes(),
      4 * (1000 + 100 + 1000 + 10));
  // x, weight, bias in; y, mean, rstd out: statistics are f32.
  const Traffic forward =
      TrafficOf(Rows(Op::kLayerNorm, BenchDirection::kForward, DType::kBF16, 10, 100));
  EXPECT_EQ(forward.read_bytes, 2 * (1000 + 100 + 100));
  EXPECT_EQ(forward.written_bytes, 2 * 1000 + 4 * (10 + 10));
  // dy, x, weight, mean, rstd in; dx, dweight, dbias out.
  const Traffic backward =
      TrafficOf(Rows(Op::kLayerNorm, BenchDirection::kBackward, DType::kBF16, 10, 100));
  EXPECT_EQ(backward.read_bytes, 2 * (2000 + 100) + 4 * 20);
  EXPECT_EQ(backward.written_bytes, 2 * (1000 + 200));
}

TEST(TrafficTest, CountsWhatVariantsAdd) {
  BenchCase residual = Rows(Op::kRmsNorm, BenchDirection::kForward, DType::kF32, 10, 100);
  residual.variant = Variant::kResidual;  // the residual in, the sum out
  EXPECT_EQ(TrafficOf(residual).total_bytes(), 4 * (2000 + 100 + 2000 + 10));
  residual.direction = BenchDirection::kBackward;  // the sum's gradient in
  EXPECT_EQ(TrafficOf(residual).total_bytes(), 4 * (3000 + 100 + 10 + 1000 + 100));
  BenchCase quantized = Rows(Op::kRmsNorm, BenchDirection::kForward, DType::kBF16, 10, 100);
  quantized.variant = Variant::kFp8Row;  // one byte an element, an f32 scale a row
  EXPECT_EQ(TrafficOf(quantized).written_bytes, 1000 + 4 * 10 + 4 * 10);
}

TEST(TrafficTest, CountsEachTensorOfBatchNormOnce) {
  const int64_t tensor = 2 * 2 * 3 * 5 * 7;
  // x, weight, bias, running mean and var in; y, mean, rstd, new running mean and var out.
  EXPECT_EQ(TrafficOf(Channels(BenchDirection::kForward)).total_bytes(), 2 * tensor + 4 * 3 * 8);
  EXPECT_EQ(TrafficOf(Channels(BenchDirection::kInference)).total_bytes(), 2 * tensor + 4 * 3 * 4);
  // dy, x, weight, mean, rstd in; dx, dweight, dbias out.
  EXPECT_EQ(TrafficOf(Channels(BenchDirection::kBackward)).total_bytes(), 3 * tensor + 4 * 3 * 5);
}

TEST(TrafficTest, TheFloorIsALaunchAndTheLargerOfBytesAndArithmetic) {
  const BenchCase bench_case =
      Rows(Op::kRmsNorm, BenchDirection::kForward, DType::kF32, 1000, 1000);
  const double bytes = 4.0 * (1e6 + 1000 + 1e6 + 1000);
  DeviceCeilings ceilings;
  ceilings.copy_gbs = 1000.0;
  ceilings.launch_us = 2.0;
  EXPECT_DOUBLE_EQ(FloorUs(bench_case, ceilings), 2.0 + bytes / 1e6);
  ceilings.f32_tflops = 1e-3;  // 4e6 operations at 1 GFLOP/s: 4 ms
  EXPECT_DOUBLE_EQ(FloorUs(bench_case, ceilings), 2.0 + 4000.0);
}

TEST(TrafficTest, PeaksFollowFromTheCard) {
  EXPECT_EQ(F32LanesPerSm(7, 5), 64);
  EXPECT_EQ(F32LanesPerSm(8, 0), 64);
  EXPECT_EQ(F32LanesPerSm(8, 6), 128);
  EXPECT_EQ(F32LanesPerSm(9, 0), 128);
  EXPECT_DOUBLE_EQ(F32PeakTflops(100, 128, 2.0), 51.2);
  EXPECT_DOUBLE_EQ(RidgePoint(51.2, 3200.0), 16.0);
}

TEST(TrafficTest, BarsFollowTheBytesMoved) {
  const auto bar = [](Op op, BenchDirection direction, int64_t rows, int64_t hidden_size) {
    return Bar(Rows(op, direction, DType::kF32, rows, hidden_size)).value_or(0.0);
  };
  EXPECT_EQ(bar(Op::kRmsNorm, BenchDirection::kForward, 65536, 1024), 0.93);
  EXPECT_EQ(bar(Op::kRmsNorm, BenchDirection::kForward, 32, 4096), 0.0);
  EXPECT_EQ(bar(Op::kLayerNorm, BenchDirection::kBackward, 65536, 1024), 0.85);
  EXPECT_EQ(bar(Op::kLayerNorm, BenchDirection::kBackward, 1024, 4096), 0.70);
  EXPECT_EQ(bar(Op::kLayerNorm, BenchDirection::kForward, 65536, 1023), 0.85);
  EXPECT_EQ(bar(Op::kLayerNorm, BenchDirection::kBackward, 65536, 1023), 0.75);
  EXPECT_EQ(Bar(Channels(BenchDirection::kInference)), 0.93);
  EXPECT_FALSE(Bar(Channels(BenchDirection::kForward)).has_value());  // under 64 MiB
}

}  // namespace
}  // namespace norm::bench
