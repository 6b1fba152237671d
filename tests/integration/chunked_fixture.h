// A server, a client with plain protobuf, and what must hold around a chunked request gone wrong.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "tests/integration/await.h"
#include "tests/integration/chunked_stream.h"
#include "tests/support/cpu_server.h"
#include "tests/support/request_builder.h"

namespace norm::server {

using norm::test::Await;
using norm::test::CanaryRequest;
using norm::test::ChunkedMessages;
using norm::test::ChunkedResult;
using norm::test::CpuServer;
using norm::test::InProcessServerOptions;
using norm::test::OpenStream;
using norm::test::SameBits;
using norm::test::Zeros;
using norm::v1::NormalizationService;
using norm::v1::NormalizeRequest;
using norm::v1::NormalizeResponse;
using norm::v1::StreamRequest;
using ::testing::HasSubstr;

inline constexpr uint64_t kId = 7;
inline constexpr uint64_t kCanaryId = 1000;

/// x and residual [8, 4].
inline NormalizeRequest EightRows() {
  NormalizeRequest request = CanaryRequest();
  *request.mutable_x() = Zeros({8, 4});
  *request.mutable_residual() = Zeros({8, 4});
  return request;
}

inline StreamRequest Cancel(uint64_t id) {
  StreamRequest message;
  message.set_id(id);
  message.mutable_cancel();
  return message;
}

class ChunkedFixture : public ::testing::Test {
 protected:
  void Start(const InProcessServerOptions& options = {}) {
    cpu_ = std::make_unique<CpuServer>(options);
    stub_ = NormalizationService::NewStub(cpu_->server.Connect());
  }

  /// A whole request and a chunked one are served beside whatever else is on the stream.
  void ExpectOthersUnharmed(OpenStream& stream) {
    NormalizeResponse alone;
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Normalize(&context, EightRows(), &alone).ok());
    StreamRequest whole;
    whole.set_id(kCanaryId);
    *whole.mutable_forward() = EightRows();
    stream.Write(whole);
    for (const StreamRequest& message : ChunkedMessages(kCanaryId + 1, EightRows()).All(3)) {
      stream.Write(message);
    }
    const ChunkedResult answer = stream.AwaitFinal(kCanaryId);
    EXPECT_EQ(answer.final.forward().y().data(), alone.y().data());
    EXPECT_TRUE(SameBits(alone, stream.AwaitFinal(kCanaryId + 1)));
    stream.Forget(kCanaryId);
    stream.Forget(kCanaryId + 1);
  }

  void ExpectNothingLeft() {
    EXPECT_TRUE(Await([&] {
      const SchedulerLoad load = cpu_->server.scheduler().Load();
      return load.in_flight_requests == 0 && load.queued_requests == 0 &&
             load.in_flight_bytes == 0 && cpu_->executor.memory_usage().used_bytes == 0;
    }));
  }

  static void ExpectError(const ChunkedResult& result, grpc::StatusCode code,
                          const std::string& message) {
    EXPECT_EQ(result.final.status().code(), code) << result.final.status().message();
    EXPECT_THAT(result.final.status().message(), HasSubstr(message));
    EXPECT_FALSE(result.final.has_forward());
  }

  std::unique_ptr<CpuServer> cpu_;
  std::unique_ptr<NormalizationService::Stub> stub_;
};

inline ChunkedMessages Cut() { return ChunkedMessages(kId, EightRows()); }

}  // namespace norm::server
