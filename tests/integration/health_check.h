// One call of the standard health service, whose messages this build does not generate.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace norm::test {

/// grpc.health.v1.Health/Check: SERVING, NOT_SERVING, or the code of a call that failed as a number. Its
/// messages are one field each: service = 1 (string), status = 1 (enum).
inline std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                               const std::string& service) {
  std::string request;
  if (!service.empty()) {
    request = {'\x0a', static_cast<char>(service.size())};
    request += service;
  }
  grpc::Slice slice(request);
  grpc::ByteBuffer bytes(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", bytes, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return std::to_string(status.error_code());
  grpc::Slice answer;
  if (!response.DumpToSingleSlice(&answer).ok()) return "unreadable";
  const std::string text(reinterpret_cast<const char*>(answer.begin()), answer.size());
  if (text == "\x08\x01") return "SERVING";
  if (text == "\x08\x02") return "NOT_SERVING";
  return "other";
}

}  // namespace norm::test
