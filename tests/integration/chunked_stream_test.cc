// Tensors in rows: the bits are those of the unary call, whatever the cuts.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "tests/integration/await.h"
#include "tests/integration/checked_request.h"
#include "tests/integration/chunked_stream.h"
#include "tests/support/cpu_server.h"
#include "tests/support/job_builder.h"
#include "tests/support/request_builder.h"

namespace norm::server {
namespace {

using norm::test::Await;
using norm::test::CanaryRequest;
using norm::test::CheckedRequest;
using norm::test::ChunkedMessages;
using norm::test::ChunkedResult;
using norm::test::CpuServer;
using norm::test::InProcessServerOptions;
using norm::test::SameBits;
using norm::test::SendAll;
using norm::v1::NormalizationService;
using norm::v1::NormalizeBackwardRequest;
using norm::v1::NormalizeBackwardResponse;
using norm::v1::NormalizeRequest;
using norm::v1::NormalizeResponse;
using norm::v1::StreamRequest;

class ChunkedStreamTest : public ::testing::Test {
 protected:
  /// A window that a few rows fill, so that it opens and closes many times.
  static InProcessServerOptions SmallWindow() {
    InProcessServerOptions options;
    options.grpc.stream_window_bytes = 1024;
    return options;
  }

  NormalizeResponse Unary(const NormalizeRequest& request) {
    grpc::ClientContext context;
    NormalizeResponse response;
    const grpc::Status status = stub_->Normalize(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  NormalizeBackwardResponse Unary(const NormalizeBackwardRequest& request) {
    grpc::ClientContext context;
    NormalizeBackwardResponse response;
    const grpc::Status status = stub_->NormalizeBackward(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  template <typename Request>
  void ExpectSameBits(const Request& request, const std::string& label, int64_t rows_per_message) {
    const ChunkedMessages messages(5, request);
    const ChunkedResult result = SendAll(*stub_, messages.All(rows_per_message));
    EXPECT_TRUE(SameBits(Unary(request), result))
        << label << ", " << rows_per_message << " rows a message of " << messages.rows();
  }

  void ExpectNothingLeft() {
    EXPECT_TRUE(Await([&] {
      const SchedulerLoad load = cpu_.server.scheduler().Load();
      return load.in_flight_requests == 0 && load.in_flight_bytes == 0 &&
             cpu_.executor.memory_usage().used_bytes == 0;
    }));
  }

  CpuServer cpu_{SmallWindow()};
  std::unique_ptr<NormalizationService::Stub> stub_ =
      NormalizationService::NewStub(cpu_.server.Connect());
};

TEST_F(ChunkedStreamTest, BitsAreThoseOfTheUnaryCall) {
  for (uint64_t seed = 0; seed < 96; ++seed) {
    const CheckedRequest request(seed, 3000);
    const int64_t cuts[] = {1, 3, 7, 1000000};
    const int64_t cut = cuts[seed % 4];
    if (request.direction() == Direction::kForward) {
      ExpectSameBits(request.forward(), request.label(), cut);
      continue;
    }
    ExpectSameBits(request.backward(), request.label(), cut);
    // Without gradients of parameters the rows are independent.
    NormalizeBackwardRequest alone = request.backward();
    alone.set_omit_dweight(true);
    alone.set_omit_dbias(true);
    ExpectSameBits(alone, request.label() + " dx alone", cut);
  }
  ExpectNothingLeft();
}

TEST_F(ChunkedStreamTest, EmptyTensors) {
  NormalizeRequest rows = CanaryRequest();
  *rows.mutable_x() = norm::test::Zeros({0, 4});
  ExpectSameBits(rows, "rows", 5);
  NormalizeRequest training;
  training.mutable_batch_norm()->set_mode(norm::v1::BatchNorm::MODE_TRAINING);
  *training.mutable_x() = norm::test::Zeros({0, 3, 5});
  *training.mutable_running_mean() = norm::test::Zeros({3});
  *training.mutable_running_var() = norm::test::Zeros({3});
  ExpectSameBits(training, "training", 5);
  NormalizeRequest inference = training;
  inference.mutable_batch_norm()->set_mode(norm::v1::BatchNorm::MODE_INFERENCE);
  inference.set_return_statistics(true);
  ExpectSameBits(inference, "inference", 5);
  NormalizeBackwardRequest backward;
  backward.mutable_layer_norm();
  *backward.mutable_x() = norm::test::Zeros({0, 4});
  *backward.mutable_dy() = norm::test::Zeros({0, 4});
  *backward.mutable_weight() = norm::test::Zeros({4});
  backward.set_has_bias(true);
  ExpectSameBits(backward, "backward", 5);
  ExpectNothingLeft();
}

/// 4 MiB of [4096, 256].
NormalizeRequest Large() {
  NormalizeRequest request;
  request.mutable_rms_norm();
  std::vector<float> x(size_t{4096} * 256);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 1013) - 500.0F;
  *request.mutable_x() = norm::test::F32Tensor({4096, 256}, x);
  *request.mutable_weight() = norm::test::F32Tensor({256}, std::vector<float>(256, 2.0F));
  return request;
}

TEST(ChunkedMemoryTest, ATensorLargerThanTheDevicePasses) {
  InProcessServerOptions options;
  options.grpc.stream_window_bytes = 256 << 10;
  CpuServer large;
  CpuServer small(options, {.memory_budget_bytes = int64_t{2} << 20});
  grpc::ClientContext context;
  NormalizeResponse whole;
  const auto unary = NormalizationService::NewStub(large.server.Connect());
  ASSERT_TRUE(unary->Normalize(&context, Large(), &whole).ok());
  const auto stub = NormalizationService::NewStub(small.server.Connect());
  const ChunkedResult result = SendAll(*stub, ChunkedMessages(1, Large()).All(100));
  EXPECT_TRUE(SameBits(whole, result));
  // In one message it does not fit, and gathered it does not either.
  grpc::ClientContext second;
  NormalizeResponse none;
  EXPECT_EQ(stub->Normalize(&second, Large(), &none).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  NormalizeRequest training;
  training.mutable_batch_norm()->set_mode(norm::v1::BatchNorm::MODE_TRAINING);
  *training.mutable_x() = Large().x();
  const ChunkedResult refused = SendAll(*stub, ChunkedMessages(1, training).All(100));
  EXPECT_EQ(refused.final.status().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(ChunkedMemoryTest, TheHostCopiesEachInputOnce) {
  CpuServer cpu;
  const auto stub = NormalizationService::NewStub(cpu.server.Connect());
  const int64_t bytes = int64_t{4} << 20;
  // Rows on their own: gathered by the executor, with the weight once a launch.
  EXPECT_EQ(SendAll(*stub, ChunkedMessages(1, Large()).All(512)).final.status().code(), 0);
  EXPECT_GE(cpu.executor.host_copied_bytes(), bytes + 1024);
  EXPECT_LE(cpu.executor.host_copied_bytes(), bytes + 8 * 1024);
  // Gathered ones, and what came with their header: taken from where they were put together.
  const int64_t before = cpu.executor.host_copied_bytes();
  NormalizeBackwardRequest backward;
  backward.mutable_rms_norm();
  *backward.mutable_x() = Large().x();
  *backward.mutable_dy() = Large().x();
  *backward.mutable_weight() = Large().weight();
  EXPECT_EQ(SendAll(*stub, ChunkedMessages(1, backward).All(512)).final.status().code(), 0);
  EXPECT_EQ(cpu.executor.host_copied_bytes() - before, 0);
}

TEST(ChunkedMemoryTest, AnUploadThatNobodyReadsTakesTheWindowAndNoMore) {
  InProcessServerOptions options;
  options.grpc.stream_window_bytes = 256 << 10;
  CpuServer cpu(options);
  const auto stub = NormalizationService::NewStub(cpu.server.Connect());
  NormalizeRequest request = Large();
  std::string& x = *request.mutable_x()->mutable_data();
  for (int i = 0; i < 4; ++i) x += x;  // 64 MiB, more than sockets take
  request.mutable_x()->set_shape(0, int64_t{4096} * 16);
  const ChunkedMessages messages(1, request);
  grpc::ClientContext context;
  const auto stream = stub->NormalizeStream(&context);
  std::atomic<int64_t> written{0};
  std::thread writer([&] {
    for (const StreamRequest& message : messages.All(64)) {
      if (!stream->Write(message)) break;
      ++written;
    }
    stream->WritesDone();
  });
  // Until nothing moves any more.
  ASSERT_TRUE(Await([&] {
    const int64_t before = written;
    absl::SleepFor(absl::Milliseconds(200));
    return written > 0 && written == before;
  }));
  EXPECT_LT(written.load(), 1025);
  // The window, and the weight beside it.
  EXPECT_EQ(cpu.server.scheduler().Load().in_flight_bytes, (256 << 10) + 1024);
  // What the window allows of inputs and outputs, in slabs of a quarter more at most; and slices of
  // the responses that gRPC holds.
  EXPECT_LE(cpu.executor.memory_usage().used_bytes, 1 << 20);
  ChunkedResult result;
  norm::v1::StreamResponse response;
  while (stream->Read(&response)) result.Add(response);
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(result.final.status().code(), 0);
  EXPECT_EQ(result.rows["y"].size(), size_t{64} << 20);
}

TEST(ChunkedMemoryTest, WhatIsGatheredEndsWellThoughNoMemoryIsLeftWhenItsRowsCome) {
  constexpr int64_t kMemoryBytes = 1 << 20;
  CpuServer cpu({}, {.memory_budget_bytes = kMemoryBytes});
  const auto stub = NormalizationService::NewStub(cpu.server.Connect());
  NormalizeBackwardRequest request;
  request.mutable_rms_norm()->set_eps(1e-6);
  std::vector<float> values(64 * 64);  // more than what is left below
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 2;
  *request.mutable_x() = norm::test::F32Tensor({64, 64}, values);
  std::reverse(values.begin(), values.end());
  *request.mutable_dy() = norm::test::F32Tensor({64, 64}, values);
  values.resize(64);
  *request.mutable_weight() = norm::test::F32Tensor({64}, values);
  grpc::ClientContext context;
  NormalizeBackwardResponse whole;
  ASSERT_TRUE(stub->NormalizeBackward(&context, request, &whole).ok());
  ASSERT_TRUE(Await([&] { return cpu.executor.memory_usage().used_bytes == 0; }));
  norm::test::OpenStream stream(*stub);
  const ChunkedMessages messages(7, request);
  stream.Write(messages.Header());
  ASSERT_TRUE(Await([&] { return cpu.executor.memory_usage().used_bytes > 0; }));
  // Results that nobody takes, until the smallest slab is gone.
  std::vector<JobResult> held;
  for (const int64_t rows : {64, 1}) {
    do {
      auto batch = std::make_unique<Batch>();
      batch->jobs.push_back(
          norm::test::JobBuilder(norm::test::RmsNormProblem(rows, 256)).Build(nullptr));
      std::promise<JobResult> result;
      cpu.executor.Start(std::move(batch), [&](std::unique_ptr<Batch> done) {
        result.set_value(std::move(done->results.at(0)));
      });
      held.push_back(result.get_future().get());
    } while (held.back().status.ok());
  }
  EXPECT_GT(cpu.executor.memory_usage().used_bytes, kMemoryBytes - (16 << 10));
  stream.Write(messages.Rows(0, 64, /*last=*/true));
  EXPECT_TRUE(SameBits(whole, stream.AwaitFinal(7)));
  held.clear();
  EXPECT_TRUE(Await([&] { return cpu.executor.memory_usage().used_bytes == 0; }));
}

}  // namespace
}  // namespace norm::server
