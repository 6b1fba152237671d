// One try of one unary call.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "answer_threads.h"
#include "call_metadata.h"
#include "google/protobuf/message.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/byte_buffer.h"
#include "norm/client/options.h"
#include "retry.h"

namespace norm::client {

/// A unary call as it is tried, perhaps several times.
struct UnaryCall {
  std::string method;  // "/package.Service/Method"
  grpc::ByteBuffer request;
  absl::Time deadline;
  std::shared_ptr<TransferProgress> progress;  // optional
  CallMetadata metadata = {};
};

/// Sends the request and waits for the reply or the deadline.
AttemptOutcome TryOnce(const std::shared_ptr<grpc::Channel>& channel, AnswerThreads& threads,
                       const UnaryCall& call, grpc::ByteBuffer* reply);

/// A message type over a byte buffer, for the small messages of the control services.
absl::StatusOr<grpc::ByteBuffer> ToByteBuffer(const google::protobuf::Message& message);
absl::Status FromByteBuffer(grpc::ByteBuffer* buffer, google::protobuf::Message* message);

}  // namespace norm::client
