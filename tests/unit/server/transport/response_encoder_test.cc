#include "server/transport/response_encoder.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/request_builder.h"

namespace norm::server {
namespace {

using norm::test::F32Values;
using norm::test::Zeros;

OutputTensor Output(const std::shared_ptr<std::vector<float>>& values) {
  return {reinterpret_cast<const std::byte*>(values->data()),
          static_cast<int64_t>(values->size() * sizeof(float)), values};
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

TEST(ResponseEncoderTest, ForwardTensorsKeepShapesAndBytes) {
  norm::v1::NormalizeRequest request;
  request.mutable_layer_norm();
  *request.mutable_x() = Zeros({1, 2, 3});
  request.mutable_x()->clear_data();
  NormProblem problem;
  problem.op = Op::kLayerNorm;
  problem.rows = 2;
  problem.hidden_size = 3;
  problem.outputs.Add(TensorRole::kY);
  problem.outputs.Add(TensorRole::kMean);
  problem.outputs.Add(TensorRole::kRstd);
  JobResult result;
  auto y = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  auto mean = std::make_shared<std::vector<float>>(std::vector<float>{7, 8});
  auto rstd = std::make_shared<std::vector<float>>(std::vector<float>{9, 10});
  result.outputs[static_cast<size_t>(TensorRole::kY)] = Output(y);
  result.outputs[static_cast<size_t>(TensorRole::kMean)] = Output(mean);
  result.outputs[static_cast<size_t>(TensorRole::kRstd)] = Output(rstd);
  result.timing.kernel = absl::Microseconds(12);
  result.timing.device = "cpu";
  result.timing.batch_rows = 2;
  EXPECT_EQ(OutputBytes(result), 40);

  wire::MessageWriter writer;
  norm::v1::NormalizeResponse response;
  FillResponse(request, problem, result, absl::Microseconds(99), &writer, &response);
  const grpc::ByteBuffer bytes = writer.Build(response).value();
  norm::v1::NormalizeResponse parsed;
  ASSERT_TRUE(parsed.ParseFromString(Flatten(bytes)));
  EXPECT_EQ(F32Values(parsed.y()), *y);
  EXPECT_EQ(F32Values(parsed.mean()), *mean);
  EXPECT_EQ(F32Values(parsed.rstd()), *rstd);
  EXPECT_EQ(std::vector<int64_t>(parsed.y().shape().begin(), parsed.y().shape().end()),
            (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(std::vector<int64_t>(parsed.mean().shape().begin(), parsed.mean().shape().end()),
            (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(parsed.timing().kernel_us(), 12);
  EXPECT_EQ(parsed.timing().total_us(), 99);
  EXPECT_EQ(parsed.timing().device(), "cpu");
}

TEST(ResponseEncoderTest, StagingMemoryIsHeldUntilTheBytesAreDroppedAndNotCopied) {
  norm::v1::NormalizeRequest request;
  request.mutable_rms_norm();
  *request.mutable_x() = Zeros({64, 64});
  NormProblem problem;
  problem.rows = 64;
  problem.hidden_size = 64;
  problem.outputs.Add(TensorRole::kY);
  auto y = std::make_shared<std::vector<float>>(64 * 64, 1.5F);
  const std::weak_ptr<std::vector<float>> watched = y;
  const void* address = y->data();
  JobResult result;
  result.outputs[static_cast<size_t>(TensorRole::kY)] = Output(y);
  y.reset();
  grpc::ByteBuffer bytes;
  {
    wire::MessageWriter writer;
    norm::v1::NormalizeResponse response;
    FillResponse(request, problem, result, absl::ZeroDuration(), &writer, &response);
    bytes = writer.Build(response).value();
    result = JobResult();
  }
  EXPECT_FALSE(watched.expired());
  {
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(bytes.Dump(&slices).ok());
    bool in_place = false;
    for (const grpc::Slice& slice : slices) in_place |= slice.begin() == address;
    EXPECT_TRUE(in_place);
  }
  bytes.Clear();
  EXPECT_TRUE(watched.expired());
}

TEST(ResponseEncoderTest, BackwardGradientsTakeTheShapeOfTheWeight) {
  norm::v1::NormalizeBackwardRequest request;
  request.mutable_layer_norm()->set_normalized_dims(2);
  *request.mutable_x() = Zeros({5, 2, 2});
  *request.mutable_weight() = Zeros({2, 2});
  NormProblem problem;
  problem.op = Op::kLayerNorm;
  problem.direction = Direction::kBackward;
  problem.rows = 5;
  problem.hidden_size = 4;
  problem.outputs.Add(TensorRole::kDx);
  problem.outputs.Add(TensorRole::kDweight);
  problem.outputs.Add(TensorRole::kDbias);
  JobResult result;
  for (const TensorRole role : {TensorRole::kDx, TensorRole::kDweight, TensorRole::kDbias}) {
    result.outputs[static_cast<size_t>(role)] = Output(std::make_shared<std::vector<float>>(
        static_cast<size_t>(TensorElements(problem, role)), 1.0F));
  }
  wire::MessageWriter writer;
  norm::v1::NormalizeBackwardResponse response;
  FillResponse(request, problem, result, absl::ZeroDuration(), &writer, &response);
  EXPECT_EQ(response.dx().shape_size(), 3);
  EXPECT_EQ(response.dweight().shape_size(), 2);
  EXPECT_EQ(response.dbias().shape_size(), 2);
  request.clear_weight();
  wire::MessageWriter second;
  norm::v1::NormalizeBackwardResponse without;
  FillResponse(request, problem, result, absl::ZeroDuration(), &second, &without);
  EXPECT_EQ(without.dbias().shape_size(), 1);
  EXPECT_EQ(without.dbias().shape(0), 4);
}

}  // namespace
}  // namespace norm::server
