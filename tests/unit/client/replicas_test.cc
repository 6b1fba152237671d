// Calls to several servers that answer alike: turns, and those that are away or say NOT_SERVING.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "norm/client/client.h"
#include "tests/integration/await.h"
#include "tests/unit/client/fake_server.h"

namespace norm::client {
namespace {

using ::norm::test::Await;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);

/// Three servers on free ports that count their calls.
class ReplicasTest : public ::testing::Test {
 protected:
  ReplicasTest() {
    for (size_t i = 0; i < 3; ++i) {
      servers_[i].on_forward = [this, i](grpc::ServerContext&, const v1::NormalizeRequest& request,
                                         v1::NormalizeResponse& response) {
        ++calls_[i];
        *response.mutable_y() = request.x();
        return grpc::Status::OK;
      };
    }
  }

  std::string Addresses() const {
    return servers_[0].address() + "," + servers_[1].address() + "," + servers_[2].address();
  }

  static std::unique_ptr<Client> Connect(const std::string& address, int attempts = 1) {
    ClientOptions options;
    options.retry.max_attempts = attempts;
    return *Client::Create(address, options);
  }

  absl::Status Call(Client& client) {
    return client.RmsNorm({.x = TensorView::Of(absl::MakeConstSpan(values_), {1, 2})}, kTimeout)
        .status();
  }

  /// How many of 30 calls each server gets.
  std::vector<int> Thirty(Client& client) {
    for (auto& count : calls_) count = 0;
    for (int i = 0; i < 30; ++i) EXPECT_EQ(Call(client), absl::OkStatus());
    return {calls_[0], calls_[1], calls_[2]};
  }

  /// Until those servers, and no others, get calls.
  bool AwaitReached(Client& client, const std::array<bool, 3>& wanted) {
    return Await([&] {
      const std::vector<int> calls = Thirty(client);
      return (calls[0] > 0) == wanted[0] && (calls[1] > 0) == wanted[1] &&
             (calls[2] > 0) == wanted[2];
    });
  }

  const std::vector<float> values_ = {1, 2};
  std::array<FakeServer, 3> servers_;
  std::array<std::atomic<int>, 3> calls_ = {};
};

TEST_F(ReplicasTest, CallsTakeTheReplicasOfAListInTurn) {
  auto client = Connect(Addresses());
  ASSERT_TRUE(AwaitReached(*client, {true, true, true}));
  EXPECT_THAT(Thirty(*client), Each(10));
}

TEST_F(ReplicasTest, CallsOfSeveralConnectionsToEachTakeThemInTurn) {
  auto client = *Client::Create(Addresses(), {.connections = 2});
  ASSERT_TRUE(AwaitReached(*client, {true, true, true}));
  // Of two connections to a replica one may still be connecting.
  ASSERT_TRUE(Await([&] { return Thirty(*client) == std::vector<int>({10, 10, 10}); }));
}

TEST_F(ReplicasTest, OneThatSaysNotServingGetsNoCallUntilItServesAgain) {
  auto client = Connect(Addresses());
  ASSERT_TRUE(AwaitReached(*client, {true, true, true}));
  servers_[1].health()->SetServingStatus("", false);
  ASSERT_TRUE(AwaitReached(*client, {true, false, true}));
  EXPECT_THAT(Thirty(*client), ElementsAre(15, 0, 15));
  servers_[1].health()->SetServingStatus("", true);
  EXPECT_TRUE(AwaitReached(*client, {true, true, true}));
}

TEST_F(ReplicasTest, ALoneServerIsCalledWhateverItSays) {
  servers_[0].health()->SetServingStatus("", false);
  auto client = Connect(servers_[0].address());
  EXPECT_EQ(Call(*client), absl::OkStatus());
  EXPECT_EQ(*client->CheckHealth("", kTimeout), Health::kNotServing);
}

TEST_F(ReplicasTest, CallsGoOnWithoutAStoppedReplica) {
  auto client = Connect(Addresses(), /*attempts=*/4);
  ASSERT_TRUE(AwaitReached(*client, {true, true, true}));
  servers_[2].Stop();
  EXPECT_THAT(Thirty(*client), ElementsAre(testing::Gt(0), testing::Gt(0), 0));
}

TEST_F(ReplicasTest, OneThatFailsACallIsNotTheOneOfTheNextTry) {
  std::atomic<bool> full = false;
  servers_[0].on_forward = [&](grpc::ServerContext&, const v1::NormalizeRequest& request,
                               v1::NormalizeResponse& response) {
    ++calls_[0];
    *response.mutable_y() = request.x();
    return full ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "full") : grpc::Status::OK;
  };
  auto client = Connect(Addresses(), /*attempts=*/2);
  ASSERT_TRUE(AwaitReached(*client, {true, true, true}));
  full = true;
  EXPECT_THAT(Thirty(*client), Each(testing::Ge(14)));
}

TEST_F(ReplicasTest, WithoutAnyReplicaTheServerIsUnreachable) {
  for (FakeServer& server : servers_) server.Stop();
  const absl::Status status = Call(*Connect(Addresses()));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(IsServerUnreachable(status)) << status;
}

TEST_F(ReplicasTest, AddressesBehindOneTargetAreTakenInTurn) {
  auto client = Connect("ipv4:" + Addresses());
  ASSERT_TRUE(AwaitReached(*client, {true, true, true}));
  EXPECT_THAT(Thirty(*client), Each(10));
  servers_[0].health()->SetServingStatus("", false);
  ASSERT_TRUE(AwaitReached(*client, {false, true, true}));
}

TEST_F(ReplicasTest, StreamsTakeTheReplicasInTurn) {
  std::array<std::atomic<int>, 3> streams = {};
  for (size_t i = 0; i < 3; ++i) {
    servers_[i].on_stream = [&streams, i](
                                grpc::ServerContext&,
                                grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>&) {
      ++streams[i];
      return grpc::Status::OK;
    };
  }
  auto client = Connect(Addresses());
  ASSERT_TRUE(AwaitReached(*client, {true, true, true}));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(client->OpenStream()->Finish(kTimeout), absl::OkStatus());
  EXPECT_THAT(std::vector<int>({streams[0], streams[1], streams[2]}), Each(2));
}

TEST(CallWithRetriesTest, TriesAgainOnUnavailableAndSaysWhatIsLeft) {
  std::vector<absl::Duration> left;
  const absl::Status status =
      CallWithRetries({.max_attempts = 3, .initial_backoff = absl::Milliseconds(1)}, kTimeout,
                      [&](absl::Duration rest) -> absl::Status {
                        left.push_back(rest);
                        if (left.size() < 3) return absl::UnavailableError("full");
                        return absl::InvalidArgumentError("eps");
                      });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(left.size(), 3U);
  EXPECT_LE(left[0], kTimeout);
  EXPECT_LT(left[2], left[0]);
}

TEST(CallWithRetriesTest, RefusesAPolicyAndATimeoutThatCannotBeMeant) {
  const auto never = [](absl::Duration) -> absl::Status {
    ADD_FAILURE() << "was tried";
    return absl::OkStatus();
  };
  EXPECT_THAT(std::string(CallWithRetries({.max_attempts = 0}, kTimeout, never).message()),
              HasSubstr("max_attempts 0"));
  EXPECT_EQ(CallWithRetries({}, absl::ZeroDuration(), never).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace norm::client
