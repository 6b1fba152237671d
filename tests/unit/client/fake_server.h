// A norm.v1 server in this process whose answers a test writes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "norm/v1/server.grpc.pb.h"

namespace norm::client {

/// Listens on a free port of the loopback interface. Handlers run on gRPC's threads, one per call;
/// set them before the first call.
class FakeServer {
 public:
  using Forward = std::function<grpc::Status(grpc::ServerContext&, const v1::NormalizeRequest&,
                                             v1::NormalizeResponse&)>;
  using Backward = std::function<grpc::Status(
      grpc::ServerContext&, const v1::NormalizeBackwardRequest&, v1::NormalizeBackwardResponse&)>;
  using Stream = std::function<grpc::Status(
      grpc::ServerContext&, grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>&)>;

  Forward on_forward;
  Backward on_backward;
  Stream on_stream;
  v1::ServerInfo info;

  FakeServer() : normalization_(this), control_(this) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(&normalization_);
    builder.RegisterService(&control_);
    server_ = builder.BuildAndStart();
  }
  ~FakeServer() { Stop(); }

  /// Ends all calls and stops listening.
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  grpc::HealthCheckServiceInterface* health() { return server_->GetHealthCheckService(); }

 private:
  class Normalization : public v1::NormalizationService::Service {
   public:
    explicit Normalization(FakeServer* owner) : owner_(owner) {}
    grpc::Status Normalize(grpc::ServerContext* context, const v1::NormalizeRequest* request,
                           v1::NormalizeResponse* response) override {
      return owner_->on_forward(*context, *request, *response);
    }
    grpc::Status NormalizeBackward(grpc::ServerContext* context,
                                   const v1::NormalizeBackwardRequest* request,
                                   v1::NormalizeBackwardResponse* response) override {
      return owner_->on_backward(*context, *request, *response);
    }
    grpc::Status NormalizeStream(
        grpc::ServerContext* context,
        grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>* stream) override {
      return owner_->on_stream(*context, *stream);
    }

   private:
    FakeServer* owner_;
  };

  class Control : public v1::ServerService::Service {
   public:
    explicit Control(FakeServer* owner) : owner_(owner) {}
    grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                               v1::ServerInfo* response) override {
      *response = owner_->info;
      return grpc::Status::OK;
    }
    grpc::Status GetStatistics(grpc::ServerContext*, const v1::GetStatisticsRequest*,
                               v1::ServerStatistics* response) override {
      response->set_requests_ok(12);
      response->set_bytes_in(uint64_t{1} << 40);
      response->mutable_encode()->set_requests(3);
      response->mutable_send()->set_seconds(0.5);
      return grpc::Status::OK;
    }

   private:
    FakeServer* owner_;
  };

  Normalization normalization_;
  Control control_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace norm::client
