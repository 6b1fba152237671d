// Deadlines, cancels and overload: what happens to requests whose life does not go to plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/lifecycle_fixture.h"

namespace norm::server {
namespace {

using testing::HasSubstr;

TEST_F(LifecycleTest, DeadlineInTheQueueEndsTheRequestWithoutALaunch) {
  StartServer();
  grpc::ClientContext first;
  auto running = CallAsync(&first);
  ASSERT_TRUE(Running(1));
  grpc::ClientContext second;
  second.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  auto late = CallAsync(&second);
  ASSERT_TRUE(Queued(1));
  EXPECT_EQ(late.get().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
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

}  // namespace
}  // namespace norm::server
