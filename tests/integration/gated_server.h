// A real server on the CPU backend whose requests stop where a test wants them, and clients that
// leave in the ways clients do.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "prometheus/text_serializer.h"
#include "server/device/cpu_batch_executor.h"
#include "server/observability/metrics_impl.h"
#include "tests/integration/await.h"
#include "tests/support/gated_clock.h"
#include "tests/support/gated_executor.h"
#include "tests/support/in_process_server.h"
#include "tests/support/request_builder.h"
#include "tests/support/tcp_relay.h"

namespace norm::test {

/// One slot, so that a batch held at a gate keeps others in the queue.
class GatedServer {
 public:
  explicit GatedServer(InProcessServerOptions options = {})
      : executor_({.slots = 1}, metrics_), gates_(executor_) {
    options.clock = &clock_;
    server_ = std::make_unique<InProcessServer>(gates_, metrics_, options);
  }

  GatedClock& clock() { return clock_; }
  GatedExecutor& gates() { return gates_; }
  InProcessServer& server() { return *server_; }
  const std::string& address() const { return server_->address(); }
  server::SchedulerLoad Load() { return server_->scheduler().Load(); }

  /// Whether `text` is a line of /metrics, or comes to be one.
  bool Shows(const std::string& text) {
    return Await([&] {
      const std::string all = prometheus::TextSerializer().Serialize(metrics_.impl()->Collect());
      return all.find(text + "\n") != std::string::npos;
    });
  }

  /// Bytes of responses that wait for their readers.
  bool HoldsResponses() {
    const std::string all = prometheus::TextSerializer().Serialize(metrics_.impl()->Collect());
    return all.find("normd_unsent_bytes 0\n") == std::string::npos;
  }

  /// Everything that requests take has come back.
  void ExpectNothingLeft() {
    EXPECT_TRUE(Await([this] { return Load().in_flight_requests == 0; }));
    EXPECT_TRUE(Await([this] { return Load().in_flight_bytes == 0; })) << Load().in_flight_bytes;
    EXPECT_EQ(Load().queued_requests, 0);
    EXPECT_TRUE(Await([this] { return executor_.memory_usage().used_bytes == 0; }))
        << executor_.memory_usage().used_bytes << " bytes of staging memory are still leased";
    EXPECT_TRUE(Shows("normd_unsent_bytes 0"));
    EXPECT_TRUE(Shows("normd_streams 0"));
  }

  /// A client that comes now is served, and right.
  void ExpectServes() {
    grpc::ClientContext context;
    norm::v1::NormalizeResponse response;
    const auto stub = norm::v1::NormalizationService::NewStub(server_->Connect());
    const grpc::Status status = stub->Normalize(&context, CanaryRequest(), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(F32Values(response.y()), CanaryValues());
  }

 private:
  GatedClock clock_;
  server::Metrics metrics_{{"cpu"}, server::BatchCloseReasonNames()};
  server::CpuBatchExecutor executor_;
  GatedExecutor gates_;
  std::unique_ptr<InProcessServer> server_;
};

/// A request of a connection of its own, on a thread of its own.
class PendingCall {
 public:
  PendingCall(const std::string& address, norm::v1::NormalizeRequest request)
      : stub_(norm::v1::NormalizationService::NewStub(InProcessServer::Connect(address))) {
    // A client that has a deadline, and one that no test reaches.
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(10));
    status_ = std::async(std::launch::async, [this, request = std::move(request)] {
      return stub_->Normalize(&context_, request, &response_);
    });
  }

  void Cancel() { context_.TryCancel(); }
  grpc::Status Await() { return status_.get(); }
  /// After Await.
  bool has_pushback() const {
    return context_.GetServerTrailingMetadata().count("grpc-retry-pushback-ms") == 1;
  }
  const norm::v1::NormalizeResponse& response() const { return response_; }

 private:
  std::unique_ptr<norm::v1::NormalizationService::Stub> stub_;
  grpc::ClientContext context_;
  norm::v1::NormalizeResponse response_;
  std::future<grpc::Status> status_;
};

/// A unary call that does not read its response until it is told to: all but the first window of
/// it stays with the server.
class UnreadCall {
 public:
  UnreadCall(std::shared_ptr<grpc::Channel> channel, const google::protobuf::Message& request,
             const std::string& method = "/norm.v1.NormalizationService/Normalize")
      : channel_(std::move(channel)), stub_(channel_) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(10));
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(this);
    EXPECT_TRUE(Next());
    grpc::Slice slice(request.SerializeAsString());
    call_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), this);
    EXPECT_TRUE(Next());
  }
  ~UnreadCall() {
    if (!finished_) {
      Cancel();
      (void)Finish();
    }
    queue_.Shutdown();
    while (Next()) {
    }
  }

  void Cancel() { context_.TryCancel(); }
  bool Read(google::protobuf::Message* response) {
    grpc::ByteBuffer bytes;
    call_->Read(&bytes, this);
    if (!Next()) return false;
    grpc::Slice whole;
    return bytes.DumpToSingleSlice(&whole).ok() &&
           response->ParseFromArray(whole.begin(), static_cast<int>(whole.size()));
  }
  grpc::Status Finish() {
    finished_ = true;
    grpc::Status status;
    call_->Finish(&status, this);
    Next();
    return status;
  }

 private:
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool finished_ = false;
};

/// A request whose response is much larger than any window: y has 4 MiB.
inline norm::v1::NormalizeRequest LargeRequest() {
  norm::v1::NormalizeRequest request;
  request.mutable_rms_norm();
  *request.mutable_x() = Zeros({1024, 1024});
  return request;
}

}  // namespace norm::test
