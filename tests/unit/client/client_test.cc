#include "norm/client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/client/client_fixture.h"

namespace norm::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ClientTest, SendsEveryFieldOfAnRmsNorm) {
  v1::NormalizeRequest seen;
  server_.on_forward = [&](grpc::ServerContext&, const v1::NormalizeRequest& request,
                           v1::NormalizeResponse& response) {
    seen = request;
    *response.mutable_y() = request.x();
    *response.mutable_rstd() = request.weight();
    *response.mutable_residual_sum() = request.residual();
    response.mutable_timing()->set_device("cpu");
    response.mutable_timing()->set_kernel_us(12.5);
    return grpc::Status::OK;
  };
  const std::vector<float> weight = {7, 8, 9};
  absl::StatusOr<ForwardResult> result =
      Connect()->RmsNorm({.x = x_,
                          .weight = TensorView::Of(absl::MakeConstSpan(weight), {3}),
                          .residual = x_,
                          .normalized_dims = 1,
                          .eps = 1e-3,
                          .weight_offset = 1.0,
                          .rounding = Rounding::kNormalizedFirst,
                          .return_statistics = true,
                          .priority = Priority::kBulk},
                         kTimeout);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(seen.rms_norm().normalized_dims(), 1);
  EXPECT_EQ(seen.rms_norm().eps(), 1e-3);
  EXPECT_EQ(seen.rms_norm().weight_offset(), 1.0);
  EXPECT_EQ(seen.rms_norm().rounding(), v1::ROUNDING_NORMALIZED_FIRST);
  EXPECT_TRUE(seen.return_statistics());
  EXPECT_EQ(seen.priority(), v1::PRIORITY_BULK);
  EXPECT_EQ(seen.x().dtype(), v1::DTYPE_F32);
  EXPECT_THAT(seen.x().shape(), ElementsAre(2, 3));
  EXPECT_FALSE(seen.has_bias());
  EXPECT_EQ(Floats(result->y), values_);
  EXPECT_EQ(Floats(*result->rstd), weight);
  EXPECT_EQ(Floats(*result->residual_sum), values_);
  EXPECT_FALSE(result->mean.has_value());
  EXPECT_EQ(result->timing.device, "cpu");
  EXPECT_EQ(result->timing.kernel_us, 12.5);
}

TEST_F(ClientTest, SendsEveryFieldOfABatchNorm) {
  v1::NormalizeRequest seen;
  server_.on_forward = [&](grpc::ServerContext& context, const v1::NormalizeRequest& request,
                           v1::NormalizeResponse& response) {
    seen = request;
    return EchoX(context, request, response);
  };
  const std::vector<float> channels = {1, 2, 3};
  const TensorView per_channel = TensorView::Of(absl::MakeConstSpan(channels), {3});
  BatchNormRequest request{.x = x_,
                           .mode = BatchNormMode::kTraining,
                           .layout = BatchNormLayout::kNhwc,
                           .bias = per_channel,
                           .running_mean = per_channel,
                           .running_var = per_channel,
                           .eps = 0.0,
                           .average = CumulativeAverage{4}};
  ASSERT_TRUE(Connect()->BatchNorm(request, kTimeout).ok());
  EXPECT_EQ(seen.batch_norm().mode(), v1::BatchNorm::MODE_TRAINING);
  EXPECT_EQ(seen.batch_norm().layout(), v1::BatchNorm::LAYOUT_NHWC);
  EXPECT_TRUE(seen.batch_norm().has_eps());
  EXPECT_EQ(seen.batch_norm().num_batches_tracked(), 4);
  EXPECT_FALSE(seen.has_weight());
  EXPECT_EQ(Floats(seen.running_var().data()), channels);
  request.average = 0.25;
  ASSERT_TRUE(Connect()->BatchNorm(request, kTimeout).ok());
  EXPECT_EQ(seen.batch_norm().momentum(), 0.25);
}

TEST_F(ClientTest, SendsABackwardAndTakesItsGradients) {
  v1::NormalizeBackwardRequest seen;
  server_.on_backward = [&](grpc::ServerContext&, const v1::NormalizeBackwardRequest& request,
                            v1::NormalizeBackwardResponse& response) {
    seen = request;
    *response.mutable_dx() = request.dy();
    *response.mutable_dbias() = request.weight();
    return grpc::Status::OK;
  };
  const std::vector<float> weight = {7, 8, 9};
  absl::StatusOr<BackwardResult> result =
      Connect()->LayerNormBackward({.dy = x_,
                                    .x = x_,
                                    .weight = TensorView::Of(absl::MakeConstSpan(weight), {3}),
                                    .gradients = {.weight = false, .bias = true}},
                                   kTimeout);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(seen.omit_dweight());
  EXPECT_TRUE(seen.has_bias());
  EXPECT_EQ(seen.priority(), v1::PRIORITY_INTERACTIVE);
  EXPECT_EQ(seen.layer_norm().eps(), 1e-5);
  EXPECT_EQ(Floats(result->dx), values_);
  EXPECT_EQ(Floats(*result->dbias), weight);
  EXPECT_FALSE(result->dweight.has_value());
}

TEST_F(ClientTest, SendsTheLogicalValuesOfStridedArrays) {
  const absl::Span<const std::byte> memory(reinterpret_cast<const std::byte*>(values_.data()),
                                           sizeof(float) * 6);
  const std::unique_ptr<Client> client = Connect();
  const auto echoed = [&](const TensorView& view) {
    return Floats(client->RmsNorm({.x = view}, kTimeout)->y);
  };
  EXPECT_THAT(echoed(TensorView::Strided(DType::kF32, memory, 0, {3, 2}, {1, 3})),
              ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(echoed(TensorView::Strided(DType::kF32, memory, 1, {2, 1}, {3, 1})),
              ElementsAre(2, 5));
  EXPECT_THAT(echoed(TensorView::Strided(DType::kF32, memory, 0, {2, 2}, {0, 1})),
              ElementsAre(1, 2, 1, 2));
}

TEST_F(ClientTest, SendsAnEmptyTensor) {
  absl::StatusOr<ForwardResult> result =
      Connect()->RmsNorm({.x = TensorView::Contiguous(DType::kF32, {}, {0, 64})}, kTimeout);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->y.shape(), ElementsAre(0, 64));
  EXPECT_EQ(result->y.elements(), 0);
}

TEST_F(ClientTest, ReturnsMessagesFarOverFourMebibytes) {
  Tensor big = *Tensor::Allocate(DType::kF32, {3000, 4096});
  for (int64_t i = 0; i < big.elements(); ++i) {
    reinterpret_cast<float*>(big.mutable_bytes().data())[i] = static_cast<float>(i);
  }
  const auto progress = std::make_shared<TransferProgress>();
  absl::StatusOr<ForwardResult> result =
      Connect()->Normalize(RmsNormRequest{.x = big.view()}, kTimeout, CallOptions{progress});
  ASSERT_TRUE(result.ok()) << result.status();
  // Where gRPC received them, not in one piece, and longer than the client and the call.
  EXPECT_GT(result->y.runs().size(), 1U);
  const Tensor y = *result->y.ToTensor();
  EXPECT_EQ(y.shape(), big.shape());
  EXPECT_EQ(std::memcmp(y.bytes().data(), big.bytes().data(), big.bytes().size()), 0);
  EXPECT_GT(progress->total_bytes.load(), 3000 * 4096 * 4);
  EXPECT_EQ(progress->sent_bytes.load(), progress->total_bytes.load());
}

TEST_F(ClientTest, RefusesViewsThatContradictThemselvesWithoutACall) {
  const absl::Status status =
      Connect()
          ->RmsNorm({.x = TensorView::Of(absl::MakeConstSpan(values_), {7})}, kTimeout)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "x: byte size 24 != 28 of shape [7] f32");
}

TEST_F(ClientTest, SpreadsCallsOverItsConnections) {
  std::vector<std::string> peers;
  server_.on_forward = [&](grpc::ServerContext& context, const v1::NormalizeRequest& request,
                           v1::NormalizeResponse& response) {
    peers.push_back(context.peer());
    return EchoX(context, request, response);
  };
  const std::unique_ptr<Client> client = Connect({.connections = 3});
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(client->RmsNorm({.x = x_}, kTimeout).ok());
  EXPECT_EQ(peers[0], peers[3]);
  EXPECT_EQ(std::set<std::string>(peers.begin(), peers.end()).size(), 3u);
}

TEST_F(ClientTest, KeepsOwnedMemoryAliveWithoutCopyingIt) {
  auto owner = std::make_shared<std::vector<float>>(values_);
  const std::weak_ptr<std::vector<float>> watch = owner;
  {
    const std::unique_ptr<Client> client = Connect();
    const TensorView view = TensorView::Of(absl::MakeConstSpan(*owner), {2, 3}).OwnedBy(owner);
    owner.reset();
    EXPECT_EQ(Floats(client->RmsNorm({.x = view}, kTimeout)->y), values_);
  }
  server_.Stop();
  EXPECT_TRUE(watch.expired());
}

TEST_F(ClientTest, ReadsServerInfoStatisticsAndHealth) {
  server_.info.set_version("1.2.3");
  v1::Device* device = server_.info.add_devices();
  device->set_name("cuda:0");
  device->set_compute_capability(90);
  server_.info.mutable_limits()->set_max_message_bytes(512);
  v1::Capability* capability = server_.info.add_capabilities();
  capability->set_op("rms_norm");
  capability->set_dtype(v1::DTYPE_BF16);
  capability->add_weight_dtypes(v1::DTYPE_F32);
  server_.info.add_capabilities()->set_dtype(static_cast<v1::DType>(99));
  const std::unique_ptr<Client> client = Connect();
  absl::StatusOr<ServerInfo> info = client->GetServerInfo(kTimeout);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->version, "1.2.3");
  EXPECT_EQ(info->devices.at(0).compute_capability, 90);
  EXPECT_EQ(info->limits.max_message_bytes, 512u);
  ASSERT_EQ(info->capabilities.size(), 1u);  // the dtype of a newer server is left out
  EXPECT_EQ(info->capabilities[0].weight_dtypes.at(0), DType::kF32);
  EXPECT_EQ(client->GetStatistics(kTimeout)->bytes_in, uint64_t{1} << 40);
  EXPECT_EQ(client->GetStatistics(kTimeout)->encode.requests, 3U);
  EXPECT_EQ(client->GetStatistics(kTimeout)->send.seconds, 0.5);
  EXPECT_EQ(*client->CheckHealth("", kTimeout), Health::kServing);
  server_.health()->SetServingStatus("", false);
  EXPECT_EQ(*client->CheckHealth("", kTimeout), Health::kNotServing);
  EXPECT_EQ(client->CheckHealth("no.such.Service", kTimeout).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(ClientOptionsTest, RefusesOptionsOutOfRange) {
  EXPECT_FALSE(Client::Create("").ok());
  EXPECT_FALSE(Client::Create("localhost:1", {.connections = 0}).ok());
  EXPECT_FALSE(Client::Create("localhost:1", {.max_receive_bytes = int64_t{1} << 31}).ok());
  EXPECT_FALSE(Client::Create("localhost:1", {.keepalive_interval = absl::Milliseconds(1)}).ok());
  EXPECT_THAT(
      std::string(Client::Create("localhost:1", {.retry = {.max_attempts = 0}}).status().message()),
      HasSubstr("max_attempts 0 < 1"));
}

}  // namespace
}  // namespace norm::client
