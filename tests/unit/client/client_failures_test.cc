// How calls end that do not end well, and which of them are tried again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "norm/client/client.h"
#include "tests/support/loopback_listener.h"
#include "tests/unit/client/client_fixture.h"
#include "tests/unit/client/resetting_server.h"

namespace norm::client {
namespace {

using ::testing::HasSubstr;

TEST_F(ClientTest, KeepsTheServersCodeMessageAndDetails) {
  server_.on_forward = [](grpc::ServerContext&, const v1::NormalizeRequest&,
                          v1::NormalizeResponse&) {
    v1::Status details;
    details.set_code(3);
    google::protobuf::Any* any = details.add_details();
    any->set_type_url("type.googleapis.com/google.rpc.BadRequest");
    any->set_value("violations");
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "weight length 2 != hidden_size 3",
                        details.SerializeAsString());
  };
  const absl::Status status = Connect()->RmsNorm({.x = x_}, kTimeout).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "weight length 2 != hidden_size 3");
  EXPECT_EQ(status.GetPayload("type.googleapis.com/google.rpc.BadRequest"),
            absl::Cord("violations"));
  EXPECT_FALSE(IsServerUnreachable(status));
}

TEST_F(ClientTest, RetriesAfterTheServersPushback) {
  std::atomic<int> calls{0};
  server_.on_forward = [&](grpc::ServerContext& context, const v1::NormalizeRequest& request,
                           v1::NormalizeResponse& response) {
    if (++calls < 3) {
      context.AddTrailingMetadata("grpc-retry-pushback-ms", "1");
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "queue full");
    }
    return EchoX(context, request, response);
  };
  absl::StatusOr<ForwardResult> result = Connect()->RmsNorm({.x = x_}, kTimeout);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(calls.load(), 3);
  EXPECT_EQ(Floats(result->y), values_);
}

TEST_F(ClientTest, RetriesACallThatTheServerCutOff) {
  std::atomic<int> calls{0};
  server_.on_forward = [&](grpc::ServerContext& context, const v1::NormalizeRequest& request,
                           v1::NormalizeResponse& response) {
    if (++calls < 3) context.TryCancel();  // no trailers, as in a Shutdown
    return EchoX(context, request, response);
  };
  absl::StatusOr<ForwardResult> result = Connect()->RmsNorm({.x = x_}, kTimeout);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(calls.load(), 3);
  calls = 0;
  const absl::Status cut =
      Connect({.retry = {.max_attempts = 1}})->RmsNorm({.x = x_}, kTimeout).status();
  EXPECT_EQ(cut.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(cut.message()), HasSubstr("the server or the connection ended the call"));
  EXPECT_TRUE(IsServerUnreachable(cut));
}

TEST_F(ClientTest, FindsNoServerWhenItShutsDownDuringACall) {
  std::promise<void> entered;
  server_.on_forward = [&](grpc::ServerContext& context, const v1::NormalizeRequest&,
                           v1::NormalizeResponse&) {
    entered.set_value();
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  const std::unique_ptr<Client> client = Connect({.retry = {.max_attempts = 1}});
  auto result =
      std::async(std::launch::async, [&] { return client->RmsNorm({.x = x_}, kTimeout).status(); });
  entered.get_future().wait();
  server_.Stop();
  const absl::Status status = result.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(IsServerUnreachable(status));
}

TEST_F(ClientTest, TellsARefusalFromAnUnreachableServer) {
  server_.on_forward = [](grpc::ServerContext& context, const v1::NormalizeRequest&,
                          v1::NormalizeResponse&) {
    context.AddTrailingMetadata("grpc-retry-pushback-ms", "-1");
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
  };
  const std::unique_ptr<Client> client = Connect();
  const absl::Status refused = client->RmsNorm({.x = x_}, kTimeout).status();
  EXPECT_EQ(refused.message(), "draining");
  EXPECT_FALSE(IsServerUnreachable(refused));
  server_.Stop();
  const absl::Status gone =
      Connect({.retry = {.max_attempts = 1}})->RmsNorm({.x = x_}, kTimeout).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(IsServerUnreachable(gone));
}

TEST_F(ClientTest, EndsAtTheDeadlineWhenTheServerIsSilent) {
  std::atomic<bool> saw_deadline{false};
  server_.on_forward = [&](grpc::ServerContext& context, const v1::NormalizeRequest&,
                           v1::NormalizeResponse&) {
    saw_deadline = context.deadline() < std::chrono::system_clock::now() + std::chrono::hours(1);
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  const std::unique_ptr<Client> client = Connect();
  ASSERT_TRUE(client->GetServerInfo(kTimeout).ok());  // connected
  const absl::Status status = client->RmsNorm({.x = x_}, absl::Milliseconds(500)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  server_.Stop();
  EXPECT_TRUE(saw_deadline);
}

TEST_F(ClientTest, RefusesTimeoutsThatAreNone) {
  const std::unique_ptr<Client> client = Connect();
  for (absl::Duration timeout :
       {absl::ZeroDuration(), absl::Seconds(-1), absl::InfiniteDuration()}) {
    EXPECT_EQ(client->RmsNorm({.x = x_}, timeout).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(ClientTest, ReportsAReplyThatBreaksTheContract) {
  server_.on_forward = [](grpc::ServerContext&, const v1::NormalizeRequest& request,
                          v1::NormalizeResponse& response) {
    *response.mutable_y() = request.x();
    response.mutable_y()->set_shape(0, 200);
    return grpc::Status::OK;
  };
  const absl::Status status = Connect()->RmsNorm({.x = x_}, kTimeout).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "the server's y: 24 bytes where the shape needs 2400");
}

TEST_F(ClientTest, ACallThatAProxyResetsIsUnavailable) {
  ResettingServer server;
  const auto client = *Client::Create(server.address(), {.retry = {.max_attempts = 1}});
  const absl::Status status = client->RmsNorm({.x = x_}, kTimeout).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(IsServerUnreachable(status));
}

// A server that refuses a certificate may do so while what the client has sent already lies unread.
TEST(UnreachableTest, AConnectionThatIsResetIsExplainedAsOneThatIsClosed) {
  const test::LoopbackListener listener;
  std::thread resets([&] {
    char byte = 0;
    for (int fd = listener.Accept(); fd >= 0; fd = listener.Accept()) {
      EXPECT_GE(read(fd, &byte, 1), 0);
      const linger at_once = {.l_onoff = 1, .l_linger = 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
      close(fd);
    }
  });
  {
    const auto client = Client::Create(listener.address(), {.retry = {.max_attempts = 1}});
    ASSERT_TRUE(client.ok()) << client.status();
    const absl::Status status = (*client)->GetServerInfo(kTimeout).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(HasSubstr("want a client certificate"), HasSubstr("reset by peer")));
  }
  listener.Stop();
  resets.join();
}

}  // namespace
}  // namespace norm::client
