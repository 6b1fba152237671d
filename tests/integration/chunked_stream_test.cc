// Tensors in rows: the bits are those of the unary call, whatever the cuts.
#include <gtest/gtest.h>

#include <algorithm>
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

}  // namespace
}  // namespace norm::server
