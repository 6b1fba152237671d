// Every rung against the float64 oracle.
#include "bench/ladder/rungs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "norm/cuda/copy.h"
#include "tests/reference/batch_norm_reference.h"
#include "tests/reference/row_norm_reference.h"
#include "tests/support/tolerance.h"

namespace norm::bench {
namespace {

using testing::Expectation;
using testing::Matches;

class LadderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<cuda::Stream> stream = cuda::Stream::Create(0);
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    stream_ = std::make_unique<cuda::Stream>(std::move(stream).value());
  }

  std::unique_ptr<DeviceCase> Prepare(const BenchCase& bench_case) {
    Result<std::unique_ptr<DeviceCase>> prepared =
        DeviceCase::Prepare(bench_case, arena_, *stream_, WrittenStatistics::kNone);
    EXPECT_TRUE(prepared.ok()) << prepared.status().message();
    return prepared.ok() ? std::move(prepared).value() : nullptr;
  }

  std::vector<double> Read(const norm_device::AnyTensor& tensor, int64_t count) {
    std::vector<float> values(tensor.data == nullptr ? 0 : static_cast<size_t>(count));
    if (values.empty()) return {};
    const size_t bytes = values.size() * sizeof(float);
    EXPECT_TRUE(cuda::CopyAsync(values.data(), tensor.data, bytes, stream_->view()).ok());
    EXPECT_TRUE(stream_->view().Synchronize().ok());
    return {values.begin(), values.end()};
  }
  void Write(const norm_device::AnyTensor& tensor, const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    EXPECT_TRUE(cuda::CopyAsync(tensor.data, values.data(), bytes, stream_->view()).ok());
    EXPECT_TRUE(stream_->view().Synchronize().ok());
  }

  /// Fills the outputs with NaN, so that a value which a rung does not write is seen.
  void Run(const Rung& rung, DeviceCase& device_case, const norm_device::AnyTensor& output) {
    const size_t bytes = static_cast<size_t>(ElementCount(device_case.bench_case())) * 4;
    ASSERT_TRUE(cuda::FillAsync(output.data, std::byte{0xFF}, bytes, stream_->view()).ok());
    const Result<Enqueue> work = rung.work(device_case, arena_);
    ASSERT_TRUE(work.ok()) << work.status().message();
    const Status status = work.value()(stream_->view());
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(stream_->view().Synchronize().ok());
  }

  void CheckRows(const Rung& rung, DeviceCase& device_case) {
    const BenchCase& bench_case = device_case.bench_case();
    const CaseTensors& t = device_case.tensors();
    reference::RowNormProblem problem;
    problem.kind = rung.op == Op::kRmsNorm ? reference::RowKind::kRms : reference::RowKind::kLayer;
    problem.rows = bench_case.shape[0];
    problem.hidden_size = bench_case.shape[1];
    problem.eps = kEps;
    const int64_t elements = ElementCount(bench_case);
    problem.x = Read(t.x, elements);
    problem.residual = Read(t.residual, elements);
    problem.weight = Read(t.weight, problem.hidden_size);
    problem.bias = Read(t.bias, problem.hidden_size);
    const reference::RowNormResult want = reference::RowNormForward(problem);
    Run(rung, device_case, t.y);
    EXPECT_TRUE(Matches(testing::Output::kY, DType::kF32, Read(t.y, elements),
                        {&want.y, [&](size_t i) { return want.y_magnitude[i]; }}));
    if (!problem.residual.empty()) {
      EXPECT_EQ(Read(t.residual_sum, elements), want.residual_sum);
    }
  }

  reference::ChannelShape ShapeOf(const BenchCase& bench_case) {
    reference::ChannelShape shape;
    shape.batch = bench_case.shape[0];
    shape.channels = bench_case.shape[1];
    shape.spatial = ElementCount(bench_case) / (shape.batch * shape.channels);
    return shape;
  }

  void CheckBatchForward(const Rung& rung, DeviceCase& device_case) {
    const CaseTensors& t = device_case.tensors();
    const int64_t elements = ElementCount(device_case.bench_case());
    reference::BatchNormProblem problem;
    problem.shape = ShapeOf(device_case.bench_case());
    problem.eps = kEps;
    problem.x = Read(t.x, elements);
    problem.weight = Read(t.weight, problem.shape.channels);
    problem.bias = Read(t.bias, problem.shape.channels);
    const reference::BatchNormResult want = reference::BatchNormForward(problem);
    Run(rung, device_case, t.y);
    EXPECT_TRUE(Matches(testing::Output::kY, DType::kF32, Read(t.y, elements),
                        {&want.y, [&](size_t i) { return want.y_magnitude[i]; }}));
  }

  void CheckBatchBackward(const Rung& rung, DeviceCase& device_case) {
    const CaseTensors& t = device_case.tensors();
    const int64_t elements = ElementCount(device_case.bench_case());
    reference::BatchNormGradientProblem problem;
    problem.shape = ShapeOf(device_case.bench_case());
    const int64_t channels = problem.shape.channels;
    problem.eps = kEps;
    problem.dy = Read(t.dy, elements);
    problem.x = Read(t.x, elements);
    problem.weight = Read(t.weight, channels);
    const reference::BatchNormGradients want = reference::BatchNormBackward(problem);
    Run(rung, device_case, t.dx);
    const auto of_channel = [&](size_t i) {
      return want.dx_magnitude[static_cast<size_t>(problem.shape.Channel(static_cast<int64_t>(i)))];
    };
    EXPECT_TRUE(Matches(testing::Output::kDx, DType::kF32, Read(t.dx, elements),
                        {&want.dx, of_channel, of_channel}));
    EXPECT_TRUE(Matches(testing::Output::kDParameter, DType::kF32, Read(t.dweight, channels),
                        {&want.dweight, [&](size_t i) { return want.dweight_magnitude[i]; }}));
    EXPECT_TRUE(Matches(testing::Output::kDParameter, DType::kF32, Read(t.dbias, channels),
                        {&want.dbias, [&](size_t i) { return want.dbias_magnitude[i]; }}));
  }

  std::unique_ptr<cuda::Stream> stream_;
  TensorArena arena_{0};
};

BenchCase CaseFor(const Rung& rung, std::vector<int64_t> shape) {
  BenchCase bench_case;
  bench_case.op = rung.op;
  bench_case.direction = rung.direction;
  bench_case.variant = rung.variant;
  bench_case.shape = std::move(shape);
  if (rung.op == Op::kBatchNorm) {
    bench_case.layout = bench_case.shape.size() == 2 ? BenchLayout::kNc : BenchLayout::kNchw;
  }
  return bench_case;
}

std::string Label(const Rung& rung, const BenchCase& bench_case) {
  return rung.id + " " + rung.name + " on " + CaseName(bench_case);
}

TEST_F(LadderTest, EveryRowRungMatchesTheOracle) {
  // Tails, one row, fewer rows than a block has warps, more than one block of rows.
  const std::vector<std::vector<int64_t>> shapes = {
      {1, 1}, {3, 31}, {7, 33}, {9, 257}, {5, 1023}, {1025, 1024}, {11, 256}, {3, 4097}, {2, 4096}};
  for (const Rung& rung : AllRungs()) {
    if (rung.op == Op::kBatchNorm) continue;
    int shapes_run = 0;
    for (const std::vector<int64_t>& shape : shapes) {
      const BenchCase bench_case = CaseFor(rung, shape);
      if (!Fits(rung, bench_case)) continue;
      SCOPED_TRACE(Label(rung, bench_case));
      const std::unique_ptr<DeviceCase> device_case = Prepare(bench_case);
      ASSERT_NE(device_case, nullptr);
      CheckRows(rung, *device_case);
      ++shapes_run;
    }
    EXPECT_GE(shapes_run, 3) << rung.id;
  }
}

TEST_F(LadderTest, LayerNormRungsKeepPrecisionFarFromZero) {
  for (const Rung& rung : AllRungs()) {
    if (rung.op != Op::kLayerNorm || rung.variant != Variant::kPlain) continue;
    const BenchCase bench_case = CaseFor(rung, {3, 1024});
    SCOPED_TRACE(Label(rung, bench_case));
    const std::unique_ptr<DeviceCase> device_case = Prepare(bench_case);
    ASSERT_NE(device_case, nullptr);
    std::vector<float> x(3 * 1024);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 10000.0f + 0.5f * static_cast<float>(i % 61);
    Write(device_case->tensors().x, x);
    const std::vector<double> weight = Read(device_case->tensors().weight, 1024);
    const std::vector<double> bias = Read(device_case->tensors().bias, 1024);
    Run(rung, *device_case, device_case->tensors().y);
    const std::vector<double> y = Read(device_case->tensors().y, 3 * 1024);
    reference::RowNormProblem problem;
    problem.kind = reference::RowKind::kLayer;
    problem.rows = 3;
    problem.hidden_size = 1024;
    problem.eps = kEps;
    problem.x.assign(x.begin(), x.end());
    problem.weight = weight;
    problem.bias = bias;
    const std::vector<double> want = reference::RowNormForward(problem).y;
    // The mean itself is rounded to f32 here: half an ulp of 10000 against a spread of 8.8. E[x^2] -
    // E[x]^2 would be off by 100 times more.
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], want[i], 2e-4) << i;
  }
}

TEST_F(LadderTest, EveryBatchRungMatchesTheOracle) {
  const std::vector<std::vector<int64_t>> shapes = {{2, 3, 5, 7}, {1, 2, 4},       {17, 5, 8, 8},
                                                    {3, 33, 49},  {64, 2, 28, 28}, {300, 65},
                                                    {4, 1, 1000}};
  int rungs_run = 0;
  for (const Rung& rung : AllRungs()) {
    if (rung.op != Op::kBatchNorm) continue;
    ++rungs_run;
    for (const std::vector<int64_t>& shape : shapes) {
      const BenchCase bench_case = CaseFor(rung, shape);
      ASSERT_TRUE(Fits(rung, bench_case)) << Label(rung, bench_case);
      SCOPED_TRACE(Label(rung, bench_case));
      const std::unique_ptr<DeviceCase> device_case = Prepare(bench_case);
      ASSERT_NE(device_case, nullptr);
      if (rung.direction == BenchDirection::kBackward) {
        CheckBatchBackward(rung, *device_case);
      } else {
        CheckBatchForward(rung, *device_case);
      }
    }
  }
  EXPECT_EQ(rungs_run, 6);
}

TEST(LadderListTest, HasEveryRungOfTheWriteUpsOnItsShapes) {
  std::set<std::string> ids;
  for (const Rung& rung : AllRungs()) {
    ids.insert(rung.id);
    bool fits_a_shape = false;
    for (const BenchCase& bench_case : LadderCases()) {
      fits_a_shape = fits_a_shape || Fits(rung, bench_case);
    }
    EXPECT_TRUE(fits_a_shape) << rung.id << " " << rung.name;
  }
  EXPECT_EQ(ids,
            (std::set<std::string>{"B6", "L1", "L2", "L3", "L4", "L5", "L6", "R0", "R1", "R2"}));
}

}  // namespace
}  // namespace norm::bench
