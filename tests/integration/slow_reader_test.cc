// Clients that ask and do not read: what they may hold is bounded in bytes and in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/integration/gated_server.h"

namespace norm::test {
namespace {

InProcessServerOptions Patient() {
  InProcessServerOptions options;
  options.grpc.write_timeout = absl::Hours(1);
  options.grpc.max_unsent_bytes = int64_t{1} << 20;
  return options;
}

TEST(SlowReaderTest, GetsNoMoreInWhileItsResponsesWaitAndOthersDo) {
  GatedServer server(Patient());
  const std::shared_ptr<grpc::Channel> channel = server.server().Connect();
  UnreadCall unread(channel, LargeRequest());
  ASSERT_TRUE(Await([&] { return server.HoldsResponses(); }));
  const auto stub = norm::v1::NormalizationService::NewStub(channel);
  norm::v1::NormalizeResponse response;
  {
    grpc::ClientContext context;
    const grpc::Status status = stub->Normalize(&context, CanaryRequest(), &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1U);
  }
  server.ExpectServes();  // on a connection of its own

  ASSERT_TRUE(unread.Read(&response));
  EXPECT_EQ(response.y().data().size(), size_t{4} << 20);
  EXPECT_TRUE(unread.Finish().ok());
  server.ExpectNothingLeft();
  grpc::ClientContext context;
  EXPECT_TRUE(stub->Normalize(&context, CanaryRequest(), &response).ok());
}

TEST(SlowReaderTest, IsBrokenOffWhenItTakesTooLong) {
  InProcessServerOptions options;
  options.grpc.write_timeout = absl::Milliseconds(100);
  GatedServer server(options);
  UnreadCall unread(server.server().Connect(), LargeRequest());
  ASSERT_TRUE(server.Shows("normd_write_timeouts_total 1"));
  server.ExpectNothingLeft();
  // A client learns of it when it reads at last.
  norm::v1::NormalizeResponse response;
  EXPECT_FALSE(unread.Read(&response));
  EXPECT_EQ(unread.Finish().error_code(), grpc::StatusCode::CANCELLED);
  server.ExpectServes();
}

TEST(SlowReaderTest, AStreamIsBrokenOffTheSameWay) {
  InProcessServerOptions options;
  options.grpc.write_timeout = absl::Milliseconds(100);
  GatedServer server(options);
  const auto stub = norm::v1::NormalizationService::NewStub(server.server().Connect());
  grpc::ClientContext context;
  auto stream = stub->NormalizeStream(&context);
  norm::v1::StreamRequest request;
  *request.mutable_forward() = LargeRequest();
  for (uint64_t id = 0; id < 3; ++id) {
    request.set_id(id);
    ASSERT_TRUE(stream->Write(request));
  }
  ASSERT_TRUE(server.Shows("normd_write_timeouts_total 1"));
  server.ExpectNothingLeft();
  norm::v1::StreamResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server.ExpectServes();
}

}  // namespace
}  // namespace norm::test
