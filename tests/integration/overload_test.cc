// Ten times more in flight than the server takes: every call is answered, refused ones with the
// time to come back, and the rest right.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/integration/gated_server.h"

namespace norm::test {
namespace {

TEST(OverloadTest, EveryCallIsServedOrToldWhenToComeBack) {
  constexpr int kConnections = 10;
  constexpr int kCallersEach = 4;
  constexpr int kCallsEach = 50;
  InProcessServerOptions options;
  options.scheduler.max_queue_requests = 3;  // and one in the slot: a tenth of the callers
  options.scheduler.max_batch_rows = 1;
  GatedServer server(options);
  std::atomic<int> served{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < kConnections; ++i) {
    const auto channel = server.server().Connect();
    for (int j = 0; j < kCallersEach; ++j) {
      callers.emplace_back([&, channel] {
        const auto stub = norm::v1::NormalizationService::NewStub(channel);
        for (int k = 0; k < kCallsEach; ++k) {
          grpc::ClientContext context;
          norm::v1::NormalizeResponse response;
          const grpc::Status status = stub->Normalize(&context, CanaryRequest(), &response);
          if (status.ok()) {
            EXPECT_EQ(F32Values(response.y()), CanaryValues());
            ++served;
            continue;
          }
          EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
          EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1U);
          ++refused;
        }
      });
    }
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(served + refused, kConnections * kCallersEach * kCallsEach);
  EXPECT_GT(served, 0);
  EXPECT_GT(refused, 0) << "was no overload";
  server.ExpectNothingLeft();
  server.ExpectServes();
}

}  // namespace
}  // namespace norm::test
