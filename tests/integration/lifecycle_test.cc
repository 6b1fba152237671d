// Deadlines, cancels, overload and drain: what happens to requests whose life does not go to plan.
// The executor is driven by hand, so every interleaving is chosen, not hoped for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "norm/v1/server.grpc.pb.h"
#include "prometheus/text_serializer.h"
#include "server/observability/metrics_impl.h"
#include "tests/integration/await.h"
#include "tests/support/fake_batch_executor.h"
#include "tests/support/in_process_server.h"
#include "tests/support/request_builder.h"

namespace norm::server {
namespace {

using norm::test::Await;
using norm::test::CanaryRequest;
using norm::test::FakeBatchExecutor;
using norm::test::FakeBatchExecutorOptions;
using norm::test::InProcessServer;
using norm::test::InProcessServerOptions;
using norm::v1::NormalizationService;
using norm::v1::StreamRequest;
using norm::v1::StreamResponse;
using testing::HasSubstr;

class LifecycleTest : public testing::Test {
 protected:
  void StartServer(InProcessServerOptions options = {}, int slots = 1) {
    executor_ = std::make_unique<FakeBatchExecutor>(FakeBatchExecutorOptions{.slots = slots});
    server_ = std::make_unique<InProcessServer>(*executor_, metrics_, options);
    channel_ = server_->Connect();
    stub_ = NormalizationService::NewStub(channel_);
  }

  void TearDown() override {
    // Whatever a test left running ends here, so that the server can.
    while (executor_->running() > 0) executor_->Finish();
  }

  /// A call on a thread of its own.
  std::future<grpc::Status> CallAsync(grpc::ClientContext* context) {
    return std::async(std::launch::async, [this, context] {
      norm::v1::NormalizeResponse response;
      return stub_->Normalize(context, CanaryRequest(), &response);
    });
  }

  /// A request that is not merged with others, each in its own launch.
  static StreamRequest OneOf(uint64_t id) {
    StreamRequest request;
    request.set_id(id);
    *request.mutable_forward() = CanaryRequest();
    request.mutable_forward()->mutable_rms_norm()->set_eps(1e-6 * static_cast<double>(id + 1));
    return request;
  }

  std::string Scrape() {
    return prometheus::TextSerializer().Serialize(metrics_.impl()->Collect());
  }
  bool Running(int count) {
    return Await([&] { return executor_->running() == count; });
  }
  bool Queued(int64_t count) {
    return Await([&] { return server_->scheduler().Load().queued_requests == count; });
  }
  bool InFlight(int64_t count) {
    return Await([&] { return server_->scheduler().Load().in_flight_requests == count; });
  }

  Metrics metrics_{{"fake"}, BatchCloseReasonNames()};
  std::unique_ptr<FakeBatchExecutor> executor_;
  std::unique_ptr<InProcessServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<NormalizationService::Stub> stub_;
};

TEST_F(LifecycleTest, DeadlineInTheQueueEndsTheRequestWithoutALaunch) {
  StartServer();
  grpc::ClientContext first;
  auto running = CallAsync(&first);
  ASSERT_TRUE(Running(1));
  grpc::ClientContext second;
  second.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  EXPECT_EQ(CallAsync(&second).get().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(InFlight(1));
  executor_->Finish();
  EXPECT_TRUE(running.get().ok());
  EXPECT_EQ(executor_->started(), 1);

  grpc::ClientContext third;
  auto after = CallAsync(&third);
  ASSERT_TRUE(Running(1));
  executor_->Finish();
  EXPECT_TRUE(after.get().ok());
}

TEST_F(LifecycleTest, ManyExpiredRequestsAreNotLaunched) {
  StartServer();
  grpc::ClientContext first;
  auto running = CallAsync(&first);
  ASSERT_TRUE(Running(1));
  constexpr int kExpired = 200;
  {
    auto stream_context = std::make_unique<grpc::ClientContext>();
    auto stream = stub_->NormalizeStream(stream_context.get());
    for (int i = 0; i < kExpired; ++i) {
      StreamRequest request = OneOf(static_cast<uint64_t>(i));
      request.set_timeout_us(5000);
      ASSERT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
    StreamResponse response;
    int expired = 0;
    while (stream->Read(&response)) {
      expired += response.status().code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    }
    EXPECT_EQ(expired, kExpired);
    EXPECT_TRUE(stream->Finish().ok());
  }
  EXPECT_EQ(executor_->started(), 1);
  EXPECT_THAT(Scrape(), HasSubstr("normd_deadline_exceeded_total{stage=\"queue\"} 200"));
  executor_->Finish();
  EXPECT_TRUE(running.get().ok());
}

TEST_F(LifecycleTest, CallerWhoLeavesTheQueueIsNotLaunched) {
  StartServer();
  grpc::ClientContext first;
  auto running = CallAsync(&first);
  ASSERT_TRUE(Running(1));
  grpc::ClientContext second;
  auto cancelled = CallAsync(&second);
  ASSERT_TRUE(Queued(1));
  second.TryCancel();
  EXPECT_EQ(cancelled.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Queued(0));
  executor_->Finish();
  EXPECT_TRUE(running.get().ok());
  EXPECT_EQ(executor_->started(), 1);
  EXPECT_THAT(Scrape(), HasSubstr("normd_cancelled_total{stage=\"queue\"} 1"));
}

TEST_F(LifecycleTest, CallerWhoLeavesARunningRequestCostsNothingElse) {
  StartServer();
  grpc::ClientContext first;
  auto cancelled = CallAsync(&first);
  ASSERT_TRUE(Running(1));
  first.TryCancel();
  EXPECT_EQ(cancelled.get().error_code(), grpc::StatusCode::CANCELLED);
  grpc::ClientContext second;
  auto waiting = CallAsync(&second);
  ASSERT_TRUE(Queued(1));
  executor_->Finish();
  ASSERT_TRUE(Running(1));
  executor_->Finish();
  EXPECT_TRUE(waiting.get().ok());
  EXPECT_TRUE(InFlight(0));
}

TEST_F(LifecycleTest, VanishedConnectionEndsItsRequests) {
  StartServer();
  grpc::ClientContext first;
  auto running = CallAsync(&first);
  ASSERT_TRUE(Running(1));
  auto other_channel = server_->Connect();
  auto other_stub = NormalizationService::NewStub(other_channel);
  auto context = std::make_unique<grpc::ClientContext>();
  auto stream = other_stub->NormalizeStream(context.get());
  for (uint64_t id = 0; id < 3; ++id) ASSERT_TRUE(stream->Write(OneOf(id)));
  ASSERT_TRUE(Queued(3));
  context->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  stream.reset();
  other_stub.reset();
  other_channel.reset();
  EXPECT_TRUE(Queued(0));
  executor_->Finish();
  EXPECT_TRUE(running.get().ok());
  EXPECT_EQ(executor_->started(), 1);
  EXPECT_TRUE(Await([&] { return Scrape().find("normd_streams 0") != std::string::npos; }));
}

TEST_F(LifecycleTest, FullQueueRefusesWithTheTimeToComeBack) {
  InProcessServerOptions options;
  options.scheduler.max_queue_requests = 1;
  StartServer(options);
  grpc::ClientContext first;
  grpc::ClientContext second;
  auto running = CallAsync(&first);
  ASSERT_TRUE(Running(1));
  auto queued = CallAsync(&second);
  ASSERT_TRUE(Queued(1));
  grpc::ClientContext third;
  const grpc::Status refused = CallAsync(&third).get();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  const auto& trailers = third.GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_GE(std::stoi(std::string(pushback->second.data(), pushback->second.size())), 0);
  norm::v1::Status details;
  ASSERT_TRUE(details.ParseFromString(refused.error_details()));
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  executor_->Finish();
  ASSERT_TRUE(Running(1));
  executor_->Finish();
  EXPECT_TRUE(running.get().ok());
  EXPECT_TRUE(queued.get().ok());
  EXPECT_THAT(Scrape(), HasSubstr("normd_rejected_total{reason=\"queue_full\"} 1"));
}

TEST_F(LifecycleTest, ExecutorErrorReachesItsCallerOnly) {
  StartServer();
  grpc::ClientContext first;
  auto failing = CallAsync(&first);
  ASSERT_TRUE(Running(1));
  executor_->Finish(0, absl::InternalError("CUDA said no"));
  const grpc::Status status = failing.get();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(status.error_message(), "CUDA said no");
  grpc::ClientContext second;
  auto next = CallAsync(&second);
  ASSERT_TRUE(Running(1));
  executor_->Finish();
  EXPECT_TRUE(next.get().ok());
}

TEST_F(LifecycleTest, DuplicateIdIsRefusedAndTheFirstGoesOn) {
  StartServer();
  grpc::ClientContext context;
  auto stream = stub_->NormalizeStream(&context);
  ASSERT_TRUE(stream->Write(OneOf(7)));
  ASSERT_TRUE(Running(1));
  ASSERT_TRUE(stream->Write(OneOf(7)));
  StreamResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.id(), 7U);
  EXPECT_EQ(response.status().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(response.status().message(), HasSubstr("7 is still in flight"));
  executor_->Finish();
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.id(), 7U);
  EXPECT_EQ(response.status().code(), 0);
  EXPECT_TRUE(response.has_forward());
  // Once answered, the id is free again.
  ASSERT_TRUE(stream->Write(OneOf(7)));
  ASSERT_TRUE(Running(1));
  executor_->Finish();
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status().code(), 0);
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(LifecycleTest, StreamAnswersInOrderOfCompletionAndDrainsAfterHalfClose) {
  StartServer({}, 3);
  grpc::ClientContext context;
  auto stream = stub_->NormalizeStream(&context);
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(stream->Write(OneOf(id)));
    ASSERT_TRUE(Running(static_cast<int>(id)));
  }
  stream->WritesDone();
  std::vector<uint64_t> order;
  StreamResponse response;
  for (const int which : {1, 1, 0}) {  // second, third, first
    executor_->Finish(which);
    ASSERT_TRUE(stream->Read(&response));
    order.push_back(response.id());
  }
  EXPECT_THAT(order, testing::ElementsAre(2, 3, 1));
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(LifecycleTest, StreamReadsNoFurtherThanItsLimit) {
  InProcessServerOptions options;
  options.grpc.max_stream_requests = 4;
  StartServer(options);
  grpc::ClientContext context;
  auto stream = stub_->NormalizeStream(&context);
  constexpr uint64_t kRequests = 20;
  for (uint64_t id = 0; id < kRequests; ++id) ASSERT_TRUE(stream->Write(OneOf(id)));
  stream->WritesDone();
  ASSERT_TRUE(InFlight(4));
  StreamResponse response;
  for (uint64_t answered = 0; answered < kRequests; ++answered) {
    EXPECT_LE(server_->scheduler().Load().in_flight_requests, 4);
    ASSERT_TRUE(Await([&] { return executor_->running() > 0; }));
    executor_->Finish();
    ASSERT_TRUE(stream->Read(&response));
  }
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

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
  ASSERT_TRUE(Await([&] {
    grpc::ClientContext probe;
    norm::v1::NormalizeResponse response;
    norm::v1::NormalizeRequest
        bad;  // refused without a launch, whether or not the server still takes calls
    return stub_->Normalize(&probe, bad, &response).error_code() == grpc::StatusCode::UNAVAILABLE;
  }));
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
  ASSERT_TRUE(Await([&] {
    grpc::ClientContext probe;
    return CallAsync(&probe).get().error_code() == grpc::StatusCode::UNAVAILABLE;
  }));
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

TEST_F(LifecycleTest, TheLongestTimeoutIsNoShortOne) {
  StartServer();
  grpc::ClientContext context;
  auto stream = stub_->NormalizeStream(&context);
  StreamRequest request = OneOf(1);
  request.set_timeout_us(std::numeric_limits<uint64_t>::max());
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(Running(1));
  executor_->Finish();
  StreamResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status().code(), 0) << response.status().message();
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
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
