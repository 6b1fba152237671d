// A server whose executor is driven by hand, so every interleaving is chosen, not hoped for.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "prometheus/text_serializer.h"
#include "server/observability/metrics_impl.h"
#include "tests/integration/await.h"
#include "tests/support/fake_batch_executor.h"
#include "tests/support/in_process_server.h"
#include "tests/support/request_builder.h"

namespace norm::server {

using norm::test::Await;
using norm::test::CanaryRequest;
using norm::test::FakeBatchExecutor;
using norm::test::FakeBatchExecutorOptions;
using norm::test::InProcessServer;
using norm::test::InProcessServerOptions;
using norm::v1::NormalizationService;
using norm::v1::StreamRequest;
using norm::v1::StreamResponse;

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

  /// A request that shares no launch with those of other ids.
  static StreamRequest OneOf(uint64_t id) {
    StreamRequest request;
    request.set_id(id);
    request.mutable_forward()->mutable_rms_norm();
    *request.mutable_forward()->mutable_x() = norm::test::Zeros({1, static_cast<int64_t>(id) + 5});
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
  /// Whether calls are refused by now. Probes with a request that never launches: an accepted one
  /// would wait for a slot until the drain's deadline.
  bool Draining() {
    return Await([&] {
      grpc::ClientContext context;
      norm::v1::NormalizeResponse response;
      return stub_->Normalize(&context, norm::v1::NormalizeRequest(), &response).error_code() ==
             grpc::StatusCode::UNAVAILABLE;
    });
  }

  Metrics metrics_{{"fake"}, BatchCloseReasonNames()};
  std::unique_ptr<FakeBatchExecutor> executor_;
  std::unique_ptr<InProcessServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<NormalizationService::Stub> stub_;
};

}  // namespace norm::server
