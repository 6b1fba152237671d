// Clients that ask and do not read: what they may hold is bounded in bytes and in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "norm/v1/echo.grpc.pb.h"
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
    // On a slow machine the end comes before the last of them.
    const bool written = stream->Write(request);
    ASSERT_TRUE(written || id > 0);
  }
  ASSERT_TRUE(server.Shows("normd_write_timeouts_total 1"));
  server.ExpectNothingLeft();
  norm::v1::StreamResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server.ExpectServes();
}

norm::v1::EchoMessage LargeEcho() {
  norm::v1::EchoMessage message;
  message.set_data(std::string(size_t{4} << 20, 'e'));
  return message;
}

TEST(SlowReaderTest, EchoesCountLikeOtherResponses) {
  GatedServer server(Patient());
  const std::shared_ptr<grpc::Channel> channel = server.server().Connect();
  UnreadCall unread(channel, LargeEcho(), "/norm.v1.EchoService/Echo");
  ASSERT_TRUE(Await([&] { return server.HoldsResponses(); }));
  const auto echo = norm::v1::EchoService::NewStub(channel);
  norm::v1::EchoMessage response;
  {
    grpc::ClientContext context;
    const grpc::Status status = echo->Echo(&context, {}, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1U);
  }
  {
    grpc::ClientContext context;
    const auto stream = echo->EchoStream(&context);
    EXPECT_TRUE(stream->Write({}));
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  {
    grpc::ClientContext context;
    norm::v1::NormalizeResponse refused;
    EXPECT_EQ(norm::v1::NormalizationService::NewStub(channel)
                  ->Normalize(&context, CanaryRequest(), &refused)
                  .error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
  server.ExpectServes();  // on a connection of its own
  ASSERT_TRUE(unread.Read(&response));
  EXPECT_EQ(response.data(), LargeEcho().data());
  EXPECT_TRUE(unread.Finish().ok());
  server.ExpectNothingLeft();
  grpc::ClientContext context;
  EXPECT_TRUE(echo->Echo(&context, {}, &response).ok());
}

TEST(SlowReaderTest, AnEchoIsBrokenOffWhenItTakesTooLong) {
  InProcessServerOptions options;
  options.grpc.write_timeout = absl::Milliseconds(100);
  GatedServer server(options);
  UnreadCall unread(server.server().Connect(), LargeEcho(), "/norm.v1.EchoService/Echo");
  ASSERT_TRUE(server.Shows("normd_write_timeouts_total 1"));
  server.ExpectNothingLeft();
  norm::v1::EchoMessage response;
  EXPECT_FALSE(unread.Read(&response));
  EXPECT_EQ(unread.Finish().error_code(), grpc::StatusCode::CANCELLED);
  server.ExpectServes();
}

TEST(SlowReaderTest, AStreamOfEchoesHoldsAsMuchAsOneOfResults) {
  InProcessServerOptions options;
  options.grpc.write_timeout = absl::Hours(1);
  options.grpc.max_stream_unsent_bytes = int64_t{5} << 20;
  GatedServer server(options);
  const auto echo = norm::v1::EchoService::NewStub(server.server().Connect());
  grpc::ClientContext context;
  const auto stream = echo->EchoStream(&context);
  constexpr int kMessages = 12;
  std::thread writer([&] {
    for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(stream->Write(LargeEcho()));
    stream->WritesDone();
  });
  // One that is being written, and two that wait: the second is the first over the limit.
  const int64_t most = 3 * static_cast<int64_t>(LargeEcho().ByteSizeLong());
  EXPECT_TRUE(server.Shows(absl::StrCat("normd_unsent_bytes ", most)));
  norm::v1::EchoMessage response;
  int read = 0;
  while (stream->Read(&response)) ++read;
  writer.join();
  EXPECT_EQ(read, kMessages);
  EXPECT_TRUE(stream->Finish().ok());
  server.ExpectNothingLeft();
}

TEST(SlowReaderTest, AStreamOfEchoesIsBrokenOffWhenItTakesTooLong) {
  InProcessServerOptions options;
  options.grpc.write_timeout = absl::Milliseconds(100);
  GatedServer server(options);
  const auto echo = norm::v1::EchoService::NewStub(server.server().Connect());
  grpc::ClientContext context;
  const auto stream = echo->EchoStream(&context);
  ASSERT_TRUE(stream->Write(LargeEcho()));
  // The end may come before the last of them, on a slow machine.
  for (int i = 0; i < 2; ++i) (void)stream->Write(LargeEcho());
  ASSERT_TRUE(server.Shows("normd_write_timeouts_total 1"));
  server.ExpectNothingLeft();
  norm::v1::EchoMessage response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server.ExpectServes();
}

TEST(SlowReaderTest, ManySmallResponsesAreAllTakenOffTheAccount) {
  GatedServer server;
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&server] {
      const auto stub = norm::v1::NormalizationService::NewStub(server.server().Connect());
      grpc::ClientContext context;
      auto stream = stub->NormalizeStream(&context);
      norm::v1::StreamRequest request;
      *request.mutable_forward() = CanaryRequest();
      norm::v1::StreamResponse response;
      constexpr uint64_t kRequests = 2000;
      constexpr uint64_t kInFlight = 32;
      for (uint64_t id = 0; id < kRequests + kInFlight; ++id) {
        request.set_id(id);
        if (id < kRequests) {
          ASSERT_TRUE(stream->Write(request));
        }
        if (id >= kInFlight) {
          ASSERT_TRUE(stream->Read(&response));
          EXPECT_EQ(response.status().code(), 0) << response.status().message();
        }
      }
      stream->WritesDone();
      EXPECT_FALSE(stream->Read(&response));
      EXPECT_TRUE(stream->Finish().ok());
    });
  }
  for (std::thread& client : clients) client.join();
  server.ExpectNothingLeft();
}

}  // namespace
}  // namespace norm::test
