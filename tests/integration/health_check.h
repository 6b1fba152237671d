// One call of the standard health service.
#pragma once

#include <memory>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace norm::test {

/// grpc.health.v1.Health/Check: "SERVING", "NOT_SERVING", or the code of a call that failed as a number.
inline std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                               const std::string& service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  grpc::ClientContext context;
  const grpc::Status status =
      grpc::health::v1::Health::NewStub(channel)->Check(&context, request, &response);
  if (!status.ok()) return std::to_string(status.error_code());
  return grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status());
}

}  // namespace norm::test
