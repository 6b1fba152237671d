// Drain: accepted work is finished, late callers are told, idle streams and connections are ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "norm/v1/echo.grpc.pb.h"
#include "tests/integration/lifecycle_fixture.h"

namespace norm::server {
namespace {

TEST_F(LifecycleTest, DrainFinishesWhatWasAcceptedAndEndsIdleStreams) {
  InProcessServerOptions options;
  options.grpc.drain_timeout = absl::Minutes(1);
  StartServer(options);
  grpc::ClientContext first;
  auto running = CallAsync(&first);
  ASSERT_TRUE(Running(1));
  grpc::ClientContext stream_context;
  auto stream = stub_->NormalizeStream(&stream_context);
  ASSERT_TRUE(stream->Write(OneOf(1)));
  ASSERT_TRUE(Queued(1));

  auto drained = std::async(std::launch::async, [&] { return server_->server().Drain(); });
  ASSERT_TRUE(Draining());
  executor_->Finish();
  EXPECT_TRUE(running.get().ok());
  ASSERT_TRUE(Running(1));
  executor_->Finish();
  StreamResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.id(), 1U);
  EXPECT_EQ(response.status().code(), 0);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(drained.get().ok());
}

TEST_F(LifecycleTest, DrainAnswersWhatComesWhileAcceptedWorkFinishes) {
  InProcessServerOptions options;
  options.grpc.drain_timeout = absl::Minutes(1);
  StartServer(options);
  grpc::ClientContext first;
  auto running = CallAsync(&first);
  ASSERT_TRUE(Running(1));
  auto drained = std::async(std::launch::async, [&] { return server_->server().Drain(); });
  ASSERT_TRUE(Draining());
  // On open connections too, each is refused by name and told when to come back; none is cancelled.
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::future<grpc::Status>> late;
  for (int i = 0; i < 100; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    late.push_back(CallAsync(contexts.back().get()));
  }
  for (int i = 0; i < 100; ++i) {
    const grpc::Status status = late[static_cast<size_t>(i)].get();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    EXPECT_EQ(contexts[static_cast<size_t>(i)]->GetServerTrailingMetadata().count(
                  "grpc-retry-pushback-ms"),
              1U);
  }
  grpc::ClientContext late_echo;
  norm::v1::EchoMessage message;
  auto echo = norm::v1::EchoService::NewStub(channel_);
  EXPECT_EQ(echo->Echo(&late_echo, message, &message).error_code(), grpc::StatusCode::UNAVAILABLE);
  executor_->Finish();
  EXPECT_TRUE(running.get().ok());
  EXPECT_TRUE(drained.get().ok());
}

TEST_F(LifecycleTest, DrainDoesNotWaitForConnectionsWithoutCalls) {
  InProcessServerOptions options;
  // Would be exceeded, and said so, if the silent connection were waited for.
  options.grpc.drain_timeout = absl::Seconds(5);
  StartServer(options);
  const std::string address = server_->address();
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(silent, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  EXPECT_TRUE(server_->server().Drain().ok());
  close(silent);
}

TEST_F(LifecycleTest, DrainDeadlineCancelsWhatIsLeft) {
  InProcessServerOptions options;
  options.grpc.drain_timeout = absl::Milliseconds(100);
  StartServer(options);
  grpc::ClientContext first;
  auto stuck = CallAsync(&first);
  ASSERT_TRUE(Running(1));
  auto drained = std::async(std::launch::async, [&] { return server_->server().Drain(); });
  const grpc::Status status = stuck.get();
  EXPECT_THAT(status.error_code(),
              testing::AnyOf(grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED));
  executor_->Finish();
  EXPECT_EQ(drained.get().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace norm::server
