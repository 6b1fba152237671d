// Large messages in memory that was set aside for them: where their bytes lie, what happens when it
// is full, and that it comes back.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "server/device/cpu_batch_executor.h"
#include "server/transport/receive_memory.h"
#include "tests/integration/await.h"
#include "tests/support/in_process_server.h"
#include "tests/support/request_builder.h"

namespace norm::server {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kMemoryBytes = 8 * kMiB;

/// Counts jobs by whether a device could copy their x from where it lies.
class CountingExecutor final : public BatchExecutor {
 public:
  explicit CountingExecutor(BatchExecutor& inner) : inner_(inner) {}

  const std::string& device_name() const override { return inner_.device_name(); }
  int slots() const override { return inner_.slots(); }
  bool healthy() const override { return inner_.healthy(); }
  int64_t max_batch_bytes() const override { return inner_.max_batch_bytes(); }
  int64_t WorkspaceBytes(const NormProblem& problem) const override {
    return inner_.WorkspaceBytes(problem);
  }
  absl::StatusOr<JobMemory> LeaseMemory(const NormProblem& problem, int64_t input_bytes) override {
    return inner_.LeaseMemory(problem, input_bytes);
  }
  void Start(std::unique_ptr<Batch> batch, BatchDone done) override {
    for (const auto& job : batch->jobs) {
      const InputTensor& x = job->inputs[static_cast<size_t>(TensorRole::kX)];
      ++(x.page_locked ? page_locked : elsewhere);
      EXPECT_EQ(x.page_locked, LiesInReceiveMemory(x.runs));
    }
    inner_.Start(std::move(batch), std::move(done));
  }

  std::atomic<int> page_locked{0};
  std::atomic<int> elsewhere{0};

 private:
  BatchExecutor& inner_;
};

class ReceiveMemoryTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ReceiveInto(std::shared_ptr<std::byte>(new std::byte[static_cast<size_t>(kMemoryBytes)],
                                           std::default_delete<std::byte[]>()),
                kMemoryBytes);
  }

  /// RMSNorm of so many MiB whose rows are [1, 2, 3, 4] times the row's number, from 1.
  static norm::v1::NormalizeRequest Request(int64_t mib) {
    const int64_t rows = mib * kMiB / 16;
    std::vector<float> values;
    for (int64_t row = 1; row <= rows; ++row) {
      for (const float value : {1, 2, 3, 4}) values.push_back(value * static_cast<float>(row));
    }
    norm::v1::NormalizeRequest request;
    request.mutable_rms_norm()->set_eps(0);
    *request.mutable_x() = norm::test::F32Tensor({rows, 4}, values);
    return request;
  }

  static void Call(grpc::Channel& channel, const norm::v1::NormalizeRequest& request) {
    const auto stub = norm::v1::NormalizationService::NewStub(
        std::shared_ptr<grpc::Channel>(&channel, [](grpc::Channel*) {}));
    grpc::ClientContext context;
    norm::v1::NormalizeResponse response;
    const grpc::Status status = stub->Normalize(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    const std::vector<float> y = norm::test::F32Values(response.y());
    ASSERT_EQ(y.size() * sizeof(float), request.x().data().size());
    // x / sqrt(7.5), whatever the row is multiplied by.
    const float expected[] = {0.36514837F, 0.73029674F, 1.0954451F, 1.4605935F};
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i % 4], 2e-7) << i;
  }

  /// The first messages are read in small pieces, until gRPC has seen how much comes.
  static constexpr int kUntilSeen = 500;

  static bool AllIsFree() { return UseOfReceiveMemory().used_bytes == 0; }

  Metrics metrics_{{"cpu"}, BatchCloseReasonNames()};
  CpuBatchExecutor cpu_{{}, metrics_};
  CountingExecutor executor_{cpu_};
};

TEST_F(ReceiveMemoryTest, TensorsOfLargeMessagesLieInItAndItComesBack) {
  {
    norm::test::InProcessServer server(executor_, metrics_);
    const auto channel = server.Connect();
    const norm::v1::NormalizeRequest request = Request(1);
    for (int i = 0; i < kUntilSeen && executor_.page_locked == 0; ++i) Call(*channel, request);
    EXPECT_GT(executor_.page_locked, 0);
    EXPECT_GT(UseOfReceiveMemory().used_bytes, 0) << "a connection keeps some to read into";
  }
  EXPECT_TRUE(norm::test::Await(AllIsFree));
}

TEST_F(ReceiveMemoryTest, WhatFindsNoRoomIsReceivedElsewhere) {
  {
    norm::test::InProcessServer server(executor_, metrics_);
    const auto channel = server.Connect();
    for (int i = 0; i < 5; ++i) Call(*channel, Request(1));
    const int before = executor_.elsewhere;
    for (int i = 0; i < 3; ++i) Call(*channel, Request(12));
    EXPECT_EQ(executor_.elsewhere - before, 3);
    // And again inside, once there is room.
    const int inside = executor_.page_locked;
    for (int i = 0; i < kUntilSeen && executor_.page_locked == inside; ++i) {
      Call(*channel, Request(1));
    }
    EXPECT_GT(executor_.page_locked, inside);
  }
  EXPECT_TRUE(norm::test::Await(AllIsFree));
}

TEST_F(ReceiveMemoryTest, IsPartOfTheQuotaOnlyWhileItIsUsed) {
  norm::test::InProcessServerOptions options;
  options.grpc.max_message_bytes = 8 * kMiB;
  options.grpc.receive_quota_bytes = 8 * kMiB;
  {
    norm::test::InProcessServer server(executor_, metrics_, options);
    const auto channel = server.Connect();
    // Eight times the quota. What is not given back to it ends calls.
    for (int i = 0; i < 64; ++i) Call(*channel, Request(1));
  }
  EXPECT_TRUE(norm::test::Await(AllIsFree));
}

}  // namespace
}  // namespace norm::server
