#include "client/normctl/load_connection.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "client/normctl/load_mix.h"
#include "norm/client/client.h"
#include "tests/unit/client/fake_server.h"

namespace norm::normctl {
namespace {

using ServerStream = grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>;

TEST(LoadConnectionTest, OpensAStreamThatHasEndedAgain) {
  client::FakeServer server;
  server.on_stream = [](grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    if (!stream.Read(&request)) return grpc::Status::OK;
    v1::StreamResponse response;
    response.set_id(request.id());
    *response.mutable_forward()->mutable_y() = request.forward().x();
    stream.Write(response);
    return grpc::Status::OK;  // the only answer of this stream
  };
  std::vector<PreparedCase> cases;
  cases.push_back(*PreparedCase::Make(LoadCase{.shape = {2, 8}}));
  const std::unique_ptr<client::Client> client = *client::Client::Create(server.address());
  const auto connection = OpenConnection(*client, cases, LoadTransport::kStream);
  ASSERT_TRUE(connection.ok()) << connection.status();
  int answered = 0;
  // One that is sent while the end of the stream is on its way fails.
  for (int64_t i = 0; i < 10'000 && answered < 3; ++i)
    answered += (*connection)->Send(0, i, absl::Seconds(30)).ok() ? 1 : 0;
  EXPECT_EQ(answered, 3);
}

/// A server whose first calls end in UNAVAILABLE.
class FailingServer {
 public:
  explicit FailingServer(int failures) : failures_(failures) {
    server_.on_forward = [this](grpc::ServerContext&, const v1::NormalizeRequest& request,
                                v1::NormalizeResponse& response) {
      if (failures_.fetch_sub(1) > 0) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "full");
      *response.mutable_y() = request.x();
      return grpc::Status::OK;
    };
    cases_.push_back(*PreparedCase::Make(LoadCase{.shape = {2, 8}}));
  }

  absl::StatusOr<LoadReply> Send(int attempts) {
    const std::unique_ptr<client::Client> client =
        *client::Client::Create(server_.address(), {.retry = {.max_attempts = 1}});
    const auto connection =
        WithRetries(*OpenConnection(*client, cases_, LoadTransport::kUnary),
                    {.max_attempts = attempts, .initial_backoff = absl::Milliseconds(1)});
    return connection->Send(0, 0, absl::Seconds(30));
  }

 private:
  std::atomic<int> failures_;
  client::FakeServer server_;
  std::vector<PreparedCase> cases_;
};

TEST(LoadConnectionTest, CountsTheTriesOfARequest) {
  const absl::StatusOr<LoadReply> at_once = FailingServer(0).Send(3);
  ASSERT_TRUE(at_once.ok()) << at_once.status();
  EXPECT_EQ(at_once->tries, 1);
  const absl::StatusOr<LoadReply> third = FailingServer(2).Send(3);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(third->tries, 3);
  EXPECT_EQ(FailingServer(3).Send(3).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace norm::normctl
