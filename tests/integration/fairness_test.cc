// One client floods, others do not: who is served, who is refused, counted at the clients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/lifecycle_fixture.h"

namespace norm::server {
namespace {

using testing::HasSubstr;

class FairnessTest : public LifecycleTest {
 protected:
  /// A stream of requests on a connection of its own.
  struct Flood {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<NormalizationService::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<StreamRequest, StreamResponse>> stream;
    uint64_t sent = 0;
    int ok = 0;
    int unavailable = 0;

    void Send(int requests) {
      for (int i = 0; i < requests; ++i) ASSERT_TRUE(stream->Write(OneOf(sent++)));
    }
    /// Reads so many responses; every failure must be UNAVAILABLE and say when to come back.
    void Read(int responses) {
      StreamResponse response;
      for (int i = 0; i < responses; ++i) {
        ASSERT_TRUE(stream->Read(&response));
        if (response.status().code() == 0) {
          ++ok;
          continue;
        }
        ++unavailable;
        EXPECT_EQ(response.status().code(), grpc::StatusCode::UNAVAILABLE);
        ASSERT_EQ(response.status().details_size(), 1);
        EXPECT_EQ(response.status().details(0).type_url(),
                  "type.googleapis.com/google.rpc.RetryInfo");
      }
    }
  };

  std::unique_ptr<Flood> StartFlood() {
    auto flood = std::make_unique<Flood>();
    flood->channel = server_->Connect();
    flood->stub = NormalizationService::NewStub(flood->channel);
    flood->stream = flood->stub->NormalizeStream(&flood->context);
    return flood;
  }
};

TEST_F(FairnessTest, TheFloodIsRefusedAndNobodyElse) {
  InProcessServerOptions options;
  options.scheduler.max_queue_requests = 8;
  StartServer(options);
  const auto flood = StartFlood();
  flood->Send(40);
  // One runs, eight wait, and while it is alone nobody has a better claim to those places.
  flood->Read(31);
  EXPECT_EQ(flood->unavailable, 31);
  ASSERT_TRUE(Queued(8));

  // The others' part is four of the eight places, whoever holds them now.
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::future<grpc::Status>> calls;
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    calls.push_back(CallAsync(contexts.back().get()));
    flood->Read(1);
    EXPECT_EQ(flood->unavailable, 32 + i);
  }
  // With its part taken the other is refused as well, and so is the flood.
  grpc::ClientContext fifth;
  EXPECT_EQ(CallAsync(&fifth).get().error_code(), grpc::StatusCode::UNAVAILABLE);
  flood->Send(5);
  flood->Read(5);
  EXPECT_EQ(flood->unavailable, 40);
  EXPECT_THAT(Scrape(), HasSubstr("normd_rejected_total{reason=\"displaced\"} 4"));
  EXPECT_THAT(Scrape(), HasSubstr("normd_rejected_total{reason=\"queue_full\"} 37"));

  flood->stream->WritesDone();
  std::thread device([this] {
    while (server_->scheduler().Load().in_flight_requests > 0) {
      if (executor_->running() > 0) executor_->Finish();
    }
  });
  for (auto& call : calls) EXPECT_TRUE(call.get().ok());
  flood->Read(5);
  EXPECT_EQ(flood->ok, 5);
  StreamResponse response;
  EXPECT_FALSE(flood->stream->Read(&response));
  EXPECT_TRUE(flood->stream->Finish().ok());
  device.join();
}

TEST_F(FairnessTest, InteractiveRequestsOvertakeBulkOnes) {
  InProcessServerOptions options;
  options.scheduler.max_batch_rows = 1;  // one request a launch
  StartServer(options);
  const auto bulk = StartFlood();
  for (uint64_t id = 0; id < 6; ++id) {
    StreamRequest request = OneOf(id);
    request.mutable_forward()->set_priority(norm::v1::PRIORITY_BULK);
    ASSERT_TRUE(bulk->stream->Write(request));
  }
  bulk->stream->WritesDone();
  ASSERT_TRUE(Queued(5));
  grpc::ClientContext context;
  auto interactive = CallAsync(&context);
  ASSERT_TRUE(Queued(6));
  executor_->Finish();  // the bulk request that ran
  ASSERT_TRUE(Running(1));
  EXPECT_EQ(executor_->batch(0).jobs[0]->priority, Priority::kInteractive);
  executor_->Finish();
  EXPECT_TRUE(interactive.get().ok());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Running(1));
    executor_->Finish();
  }
  bulk->Read(6);
  EXPECT_EQ(bulk->ok, 6);
  EXPECT_TRUE(bulk->stream->Finish().ok());
}

TEST_F(FairnessTest, AConnectionIsOneFlowWhateverItsCalls) {
  InProcessServerOptions options;
  options.scheduler.max_batch_rows = 1;
  StartServer(options);
  grpc::ClientContext contexts[2];
  auto first = CallAsync(&contexts[0]);
  ASSERT_TRUE(Running(1));
  const uint64_t flow = executor_->batch(0).jobs[0]->flow;
  const auto flood = StartFlood();
  flood->Send(1);
  ASSERT_TRUE(Queued(1));
  auto second = CallAsync(&contexts[1]);
  ASSERT_TRUE(Queued(2));
  executor_->Finish();
  ASSERT_TRUE(Running(1));
  EXPECT_NE(executor_->batch(0).jobs[0]->flow, flow);
  executor_->Finish();
  ASSERT_TRUE(Running(1));
  EXPECT_EQ(executor_->batch(0).jobs[0]->flow, flow);
  executor_->Finish();
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(second.get().ok());
  flood->Read(1);
  flood->stream->WritesDone();
  EXPECT_TRUE(flood->stream->Finish().ok());
}

}  // namespace
}  // namespace norm::server
