// norm::client against a real server, with tensors in rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "norm/client/client.h"
#include "tests/integration/await.h"
#include "tests/support/cpu_server.h"

namespace norm::client {
namespace {

using norm::test::Await;
using norm::test::CpuServer;
using norm::test::InProcessServerOptions;

constexpr absl::Duration kTimeout = absl::Seconds(60);

/// Bits of a mild range in every dtype.
Tensor Random(DType dtype, std::vector<int64_t> shape, uint64_t seed) {
  Tensor f32 = *Tensor::Allocate(DType::kF32, std::move(shape));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.5F, 1.5F);
  auto* values = reinterpret_cast<float*>(f32.mutable_bytes().data());
  for (int64_t i = 0; i < f32.elements(); ++i) values[i] = normal(random);
  return *Cast(f32, dtype);
}

std::string Bits(const ResultTensor& tensor) {
  std::string bytes(static_cast<size_t>(tensor.size_bytes()), '\0');
  tensor.CopyTo(reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

void ExpectSame(const char* name, const ResultTensor& whole, const ResultTensor& rows) {
  EXPECT_EQ(whole.dtype(), rows.dtype()) << name;
  EXPECT_EQ(whole.shape(), rows.shape()) << name;
  EXPECT_TRUE(Bits(whole) == Bits(rows)) << "bits of " << name;
}

void ExpectSame(const char* name, const std::optional<ResultTensor>& whole,
                const std::optional<ResultTensor>& rows) {
  ASSERT_EQ(whole.has_value(), rows.has_value()) << name;
  if (whole.has_value()) ExpectSame(name, *whole, *rows);
}

void ExpectSame(const absl::StatusOr<ForwardResult>& whole,
                const absl::StatusOr<ForwardResult>& rows) {
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_TRUE(rows.ok()) << rows.status();
  ExpectSame("y", whole->y, rows->y);
  ExpectSame("mean", whole->mean, rows->mean);
  ExpectSame("rstd", whole->rstd, rows->rstd);
  ExpectSame("residual_sum", whole->residual_sum, rows->residual_sum);
  ExpectSame("running_mean", whole->running_mean, rows->running_mean);
  ExpectSame("running_var", whole->running_var, rows->running_var);
}

void ExpectSame(const absl::StatusOr<BackwardResult>& whole,
                const absl::StatusOr<BackwardResult>& rows) {
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_TRUE(rows.ok()) << rows.status();
  ExpectSame("dx", whole->dx, rows->dx);
  ExpectSame("dweight", whole->dweight, rows->dweight);
  ExpectSame("dbias", whole->dbias, rows->dbias);
}

class ChunkedClientTest : public ::testing::Test {
 protected:
  /// Messages so small that only rows get through.
  static InProcessServerOptions SmallMessages() {
    InProcessServerOptions options;
    options.grpc.max_message_bytes = 64 << 10;
    options.grpc.stream_window_bytes = 100'000;
    return options;
  }
  static ChunkOptions SmallChunks() {
    // The window is less than an image of the BatchNorm below.
    return {.above_bytes = 0, .chunk_bytes = 10'000, .window_bytes = 20'000};
  }

  void ExpectNothingLeft(CpuServer& cpu) {
    EXPECT_TRUE(Await([&] {
      const server::SchedulerLoad load = cpu.server.scheduler().Load();
      return load.in_flight_requests == 0 && load.in_flight_bytes == 0 &&
             cpu.executor.memory_usage().used_bytes == 0;
    }));
  }

  CpuServer large_;
  CpuServer small_{SmallMessages()};
  std::unique_ptr<Client> whole_ =
      *Client::Create(large_.server.address(), {.chunks = {.above_bytes = int64_t{1} << 40}});
  std::unique_ptr<Client> rows_ =
      *Client::Create(small_.server.address(), {.chunks = SmallChunks()});
};

TEST_F(ChunkedClientTest, CallsBeyondTheMessageLimitHaveTheBitsOfOneMessage) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    SCOPED_TRACE(DTypeName(dtype));
    const Tensor x = Random(dtype, {7, 251, 192}, 1);
    const Tensor other = Random(dtype, {7, 251, 192}, 2);
    const Tensor weight = Random(DType::kF32, {192}, 3);
    const RmsNormRequest rms{.x = x.view(),
                             .weight = weight.view(),
                             .residual = other.view(),
                             .return_statistics = true};
    ExpectSame(whole_->RmsNorm(rms, kTimeout), rows_->RmsNorm(rms, kTimeout));
    const LayerNormRequest layer{.x = x.view(), .bias = weight.view(), .return_statistics = true};
    ExpectSame(whole_->LayerNorm(layer, kTimeout), rows_->LayerNorm(layer, kTimeout));
    for (const bool gradients : {true, false}) {
      const LayerNormBackwardRequest back{.dy = other.view(),
                                          .x = x.view(),
                                          .weight = weight.view(),
                                          .gradients = {gradients, gradients}};
      ExpectSame(whole_->LayerNormBackward(back, kTimeout),
                 rows_->LayerNormBackward(back, kTimeout));
    }
  }
  ExpectNothingLeft(small_);
}

TEST_F(ChunkedClientTest, BatchNormInEveryModeAndLayout) {
  const Tensor mean = Random(DType::kF32, {24}, 4);
  Tensor variance = *Tensor::Allocate(DType::kF32, {24});
  for (int i = 0; i < 24; ++i) {
    reinterpret_cast<float*>(variance.mutable_bytes().data())[i] = 0.5F + static_cast<float>(i);
  }
  for (const BatchNormLayout layout : {BatchNormLayout::kNchw, BatchNormLayout::kNhwc}) {
    const std::vector<int64_t> shape = layout == BatchNormLayout::kNchw
                                           ? std::vector<int64_t>{9, 24, 31, 17}
                                           : std::vector<int64_t>{9, 31, 17, 24};
    const Tensor x = Random(DType::kBF16, shape, 5);
    const Tensor dy = Random(DType::kBF16, shape, 6);
    for (const BatchNormMode mode : {BatchNormMode::kTraining, BatchNormMode::kInference}) {
      SCOPED_TRACE(mode == BatchNormMode::kTraining ? "training" : "inference");
      const BatchNormRequest forward{.x = x.view(),
                                     .mode = mode,
                                     .layout = layout,
                                     .weight = mean.view(),
                                     .running_mean = mean.view(),
                                     .running_var = variance.view(),
                                     .return_statistics = true};
      ExpectSame(whole_->BatchNorm(forward, kTimeout), rows_->BatchNorm(forward, kTimeout));
      for (const bool gradients : {true, false}) {
        BatchNormBackwardRequest backward{.dy = dy.view(),
                                          .x = x.view(),
                                          .mode = mode,
                                          .layout = layout,
                                          .weight = mean.view(),
                                          .gradients = {gradients, gradients}};
        if (mode == BatchNormMode::kInference) {
          backward.running_mean = mean.view();
          backward.running_var = variance.view();
        }
        ExpectSame(whole_->BatchNormBackward(backward, kTimeout),
                   rows_->BatchNormBackward(backward, kTimeout));
      }
    }
  }
  ExpectNothingLeft(small_);
}

TEST_F(ChunkedClientTest, ManyRequestsShareOneStream) {
  const std::unique_ptr<NormalizeStream> stream = rows_->OpenStream(
      {.chunks = {.above_bytes = 4096, .chunk_bytes = 10'000, .window_bytes = 50'000},
       .max_uploads = 3});
  struct Sent {
    RmsNormRequest request;
    std::future<absl::StatusOr<ForwardResult>> result;
  };
  std::vector<Tensor> inputs;
  std::vector<Sent> sent;
  for (uint64_t i = 0; i < 40; ++i) {
    inputs.push_back(Random(DType::kF32, {i % 2 == 0 ? 1 : 100 + static_cast<int64_t>(i), 128}, i));
    const RmsNormRequest request{.x = inputs.back().view(), .return_statistics = true};
    sent.push_back({request, stream->Normalize(request, kTimeout)});
  }
  for (Sent& one : sent) ExpectSame(whole_->RmsNorm(one.request, kTimeout), one.result.get());
  EXPECT_TRUE(stream->Finish(kTimeout).ok());
  ExpectNothingLeft(small_);
}

}  // namespace
}  // namespace norm::client
