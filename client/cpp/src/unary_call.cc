#include "unary_call.h"

#include "call_status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "request_encoder.h"

namespace norm::client {

AttemptOutcome TryOnce(const std::shared_ptr<grpc::Channel>& channel, AnswerThreads& threads,
                       const UnaryCall& unary, grpc::ByteBuffer* reply) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(unary.deadline));
  AddTo(context, unary.metadata);
  AnswerThreads::Call answer(threads);
  grpc::GenericStub stub(channel);
  // The pieces that report progress must be held by gRPC alone: the temporary goes at the end of
  // the statement.
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> call = stub.PrepareUnaryCall(
      &context, unary.method,
      unary.progress != nullptr ? WithProgress(unary.request, unary.progress) : unary.request,
      answer.queue());
  call->StartCall();
  grpc::Status status;
  call->Finish(reply, &status, answer.tag());
  answer.Wait();
  const Connection connection = channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY
                                    ? Connection::kUp
                                    : Connection::kDown;
  return AttemptOutcome{
      WithRequestId(ToAbslStatus(status, context, connection),
                    RequestIdOf(context.GetServerTrailingMetadata(), unary.metadata)),
      RetryPushback(context)};
}

absl::StatusOr<grpc::ByteBuffer> ToByteBuffer(const google::protobuf::Message& message) {
  grpc::ByteBuffer buffer;
  bool own_buffer = false;
  const grpc::Status status =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, &buffer,
                                                                                 &own_buffer);
  if (!status.ok()) return absl::InternalError(status.error_message());
  return buffer;
}

absl::Status FromByteBuffer(grpc::ByteBuffer* buffer, google::protobuf::Message* message) {
  const grpc::Status status =
      grpc::GenericDeserialize<grpc::ProtoBufferReader, google::protobuf::Message>(buffer, message);
  if (!status.ok()) return absl::InternalError(status.error_message());
  return absl::OkStatus();
}

}  // namespace norm::client
