// Segments: many BatchNorm requests in one call, each with the bits it has alone.
#include <gtest/gtest.h>

#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "norm/cuda/copy.h"
#include "norm/cuda/device_buffer.h"
#include "norm/cuda/stream.h"
#include "norm/kernels/batch_norm.h"
#include "tests/support/row_norm_case.h"
#include "tests/support/tensor_data.h"

namespace norm::testing {
namespace {

/// Device memory of a test, freed with it.
class DeviceArrays {
 public:
  explicit DeviceArrays(cuda::StreamView stream) : stream_(stream) {}

  void* Make(const std::vector<std::byte>& bytes) {
    Result<cuda::DeviceBuffer> buffer = cuda::DeviceBuffer::Allocate(bytes.size() + 1, 0);
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    buffers_.push_back(std::move(buffer).value());
    void* data = buffers_.back().data();
    EXPECT_TRUE(cuda::CopyAsync(data, bytes.data(), bytes.size(), stream_).ok());
    EXPECT_TRUE(stream_.Synchronize().ok());
    return data;
  }
  void* MakeNormal(int64_t count, double shift, double scale, DType dtype, uint64_t seed) {
    return Make(ToBytes(dtype, testing::MakeNormal(count, shift, scale, dtype, seed)));
  }
  void* MakeOutput(int64_t count, DType dtype) {
    return Make(
        std::vector<std::byte>(static_cast<size_t>(count) * DTypeSize(dtype), std::byte{0x5A}));
  }
  std::vector<std::byte> Read(const void* data, size_t bytes) {
    std::vector<std::byte> host(bytes);
    if (data == nullptr) return host;
    EXPECT_TRUE(cuda::CopyAsync(host.data(), data, bytes, stream_).ok());
    EXPECT_TRUE(stream_.Synchronize().ok());
    return host;
  }
  Workspace MakeWorkspace(size_t bytes) {
    return {Make(std::vector<std::byte>(bytes, std::byte{0x5A})), bytes};
  }

 private:
  cuda::StreamView stream_;
  std::deque<cuda::DeviceBuffer> buffers_;
};

class CudaBatchNormSegmentsTest : public ::testing::TestWithParam<BatchNormShape> {
 protected:
  void SetUp() override {
    Result<cuda::Stream> stream = cuda::Stream::Create(0);
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    stream_ = std::make_unique<cuda::Stream>(std::move(stream).value());
    arrays_ = std::make_unique<DeviceArrays>(stream_->view());
  }
  StreamHandle handle() const { return stream_->view().handle(); }

  BatchNormShape ShapeOf(int index) const {
    BatchNormShape shape = GetParam();
    // Mostly one batch, in stretches that one launch takes.
    if (index % 9 == 5) shape.batch += 3;
    if (index % 9 == 7) shape.batch = 0;
    return shape;
  }
  static int64_t Elements(const BatchNormShape& shape) {
    return shape.batch * shape.channels * shape.spatial;
  }

  /// Inputs of request `index`, outputs of its own.
  BatchNormForwardArgs MakeForward(int index, BatchNormMode mode, DTypePair dtypes) {
    const auto seed = static_cast<uint64_t>(700 + 10 * index);
    const BatchNormShape shape = ShapeOf(index);
    const int64_t channels = shape.channels;
    BatchNormForwardArgs args;
    args.shape = shape;
    args.mode = mode;
    args.dtype = dtypes.dtype;
    args.weight_dtype = dtypes.weight_dtype;
    args.eps = 1e-5 * (1 + index % 3);
    args.momentum = 0.1 * (1 + index % 4);
    args.x = arrays_->MakeNormal(Elements(shape), 0.5 * index, 1.0 + index, dtypes.dtype, seed);
    if (index % 2 == 0) {
      args.weight = arrays_->MakeNormal(channels, 1.0, 0.5, dtypes.weight_dtype, seed + 1);
    }
    if (index % 3 == 0) {
      args.bias = arrays_->MakeNormal(channels, 0.0, 0.5, dtypes.weight_dtype, seed + 2);
    }
    const bool training = mode == BatchNormMode::kTraining;
    if (!training || index % 4 != 1) {
      args.running_mean = arrays_->MakeNormal(channels, 0.0, 1.0, DType::kF32, seed + 3);
      args.running_var = arrays_->MakeNormal(channels, 3.0, 0.1, DType::kF32, seed + 4);
    }
    SetOutputs(args);
    return args;
  }
  void SetOutputs(BatchNormForwardArgs& args) {
    const int64_t channels = args.shape.channels;
    args.y = arrays_->MakeOutput(Elements(args.shape), args.dtype);
    args.rstd = arrays_->MakeOutput(channels, DType::kF32);
    if (args.mode == BatchNormMode::kTraining) {
      args.mean = arrays_->MakeOutput(channels, DType::kF32);
      if (args.running_mean != nullptr) {
        args.new_running_mean = arrays_->MakeOutput(channels, DType::kF32);
        args.new_running_var = arrays_->MakeOutput(channels, DType::kF32);
      }
    }
  }
  BatchNormBackwardArgs MakeBackward(int index, DTypePair dtypes) {
    const BatchNormForwardArgs forward = MakeForward(index, BatchNormMode::kTraining, dtypes);
    BatchNormBackwardArgs args;
    args.shape = forward.shape;
    args.dtype = forward.dtype;
    args.weight_dtype = forward.weight_dtype;
    args.eps = forward.eps;
    args.x = forward.x;
    args.weight = forward.weight;
    args.dy = arrays_->MakeNormal(Elements(args.shape), 0.25, 1.0, args.dtype,
                                  static_cast<uint64_t>(705 + 10 * index));
    if (index % 5 != 2) {
      args.mean = arrays_->MakeNormal(args.shape.channels, 0.0, 1.0, DType::kF32, 3);
      args.rstd = arrays_->MakeNormal(args.shape.channels, 1.0, 0.1, DType::kF32, 4);
    }
    SetOutputs(args);
    return args;
  }
  void SetOutputs(BatchNormBackwardArgs& args) {
    args.dx = arrays_->MakeOutput(Elements(args.shape), args.dtype);
    args.dweight = arrays_->MakeOutput(args.shape.channels, args.weight_dtype);
    args.dbias = arrays_->MakeOutput(args.shape.channels, args.weight_dtype);
  }

  void ExpectSame(const void* many, const void* alone, int64_t elements, DType dtype) {
    const size_t bytes = static_cast<size_t>(elements) * DTypeSize(dtype);
    EXPECT_EQ(arrays_->Read(many, bytes), arrays_->Read(alone, bytes));
  }

  void CheckForward(BatchNormMode mode, DTypePair dtypes, int count) {
    std::vector<BatchNormForwardArgs> segments;
    for (int i = 0; i < count; ++i) segments.push_back(MakeForward(i, mode, dtypes));
    const Workspace workspace =
        arrays_->MakeWorkspace(BatchNormForwardSegmentsWorkspaceBytes(segments));
    const Status status = BatchNormForwardSegments(segments, workspace, handle());
    ASSERT_TRUE(status.ok()) << status.message();
    for (int i = 0; i < count; ++i) {
      SCOPED_TRACE(i);
      const BatchNormForwardArgs& many = segments[static_cast<size_t>(i)];
      BatchNormForwardArgs alone = many;
      SetOutputs(alone);
      const Workspace own = arrays_->MakeWorkspace(BatchNormForwardWorkspaceBytes(alone));
      ASSERT_TRUE(BatchNormForward(alone, own, handle()).ok());
      ExpectSame(many.y, alone.y, Elements(many.shape), dtypes.dtype);
      ExpectSame(many.rstd, alone.rstd, many.shape.channels, DType::kF32);
      ExpectSame(many.mean, alone.mean, many.shape.channels, DType::kF32);
      ExpectSame(many.new_running_mean, alone.new_running_mean, many.shape.channels, DType::kF32);
      ExpectSame(many.new_running_var, alone.new_running_var, many.shape.channels, DType::kF32);
    }
  }

  void CheckBackward(DTypePair dtypes, int first, int count) {
    std::vector<BatchNormBackwardArgs> segments;
    for (int i = first; i < first + count; ++i) segments.push_back(MakeBackward(i, dtypes));
    const Workspace workspace =
        arrays_->MakeWorkspace(BatchNormBackwardSegmentsWorkspaceBytes(segments));
    const Status status = BatchNormBackwardSegments(segments, workspace, handle());
    ASSERT_TRUE(status.ok()) << status.message();
    for (const BatchNormBackwardArgs& many : segments) {
      SCOPED_TRACE(&many - segments.data());
      BatchNormBackwardArgs alone = many;
      SetOutputs(alone);
      const Workspace own = arrays_->MakeWorkspace(BatchNormBackwardWorkspaceBytes(alone));
      ASSERT_TRUE(BatchNormBackward(alone, own, handle()).ok());
      ExpectSame(many.dx, alone.dx, Elements(many.shape), dtypes.dtype);
      ExpectSame(many.dweight, alone.dweight, many.shape.channels, dtypes.weight_dtype);
      ExpectSame(many.dbias, alone.dbias, many.shape.channels, dtypes.weight_dtype);
    }
  }

  std::unique_ptr<cuda::Stream> stream_;
  std::unique_ptr<DeviceArrays> arrays_;
};

constexpr DTypePair kTestedDTypes[] = {{DType::kF32, DType::kF32}, {DType::kBF16, DType::kF32}};

TEST_P(CudaBatchNormSegmentsTest, EverySegmentHasTheBitsItHasAlone) {
  for (const DTypePair& dtypes : kTestedDTypes) {
    SCOPED_TRACE(DTypePairName(dtypes));
    // More than a launch takes.
    for (BatchNormMode mode : {BatchNormMode::kTraining, BatchNormMode::kInference}) {
      SCOPED_TRACE(mode == BatchNormMode::kTraining ? "training" : "inference");
      CheckForward(mode, dtypes, 23);
    }
    CheckBackward(dtypes, 0, 23);
    CheckBackward(dtypes, 3, 2);  // all with statistics: one launch
  }
}

TEST_P(CudaBatchNormSegmentsTest, ABadSegmentIsNamedAndNothingRuns) {
  const DTypePair f32 = kTestedDTypes[0];
  std::vector<BatchNormForwardArgs> segments;
  for (int i = 0; i < 4; ++i) {
    segments.push_back(MakeForward(i, BatchNormMode::kTraining, f32));
  }
  const Workspace workspace =
      arrays_->MakeWorkspace(BatchNormForwardSegmentsWorkspaceBytes(segments));
  segments[2].eps = -1.0;
  const Status status = BatchNormForwardSegments(segments, workspace, handle());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().rfind("segment 2: ", 0), 0u) << status.message();
  BatchNormForwardArgs untouched = segments[0];
  SetOutputs(untouched);
  ExpectSame(segments[0].y, untouched.y, Elements(untouched.shape), DType::kF32);
  EXPECT_TRUE(BatchNormForwardSegments({}, {}, handle()).ok());
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaBatchNormSegmentsTest,
                         ::testing::Values(BatchNormShape{4, 6, 1024}, BatchNormShape{20, 12, 49},
                                           BatchNormShape{3, 5, 7},
                                           BatchNormShape{6, 10, 9, BatchNormLayout::kNhwc},
                                           BatchNormShape{64, 24, 1}),
                         [](const auto& named) {
                           return "Batch" + std::to_string(named.param.batch) + "Channels" +
                                  std::to_string(named.param.channels) + "Spatial" +
                                  std::to_string(named.param.spatial);
                         });

}  // namespace
}  // namespace norm::testing
