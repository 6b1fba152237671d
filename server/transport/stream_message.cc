#include "server/transport/stream_message.h"

#include "proto/codec/message_writer.h"
#include "server/transport/status_mapping.h"

namespace norm::server {

grpc::ByteBuffer ErrorResponse(uint64_t id, const absl::Status& status) {
  norm::v1::StreamResponse response;
  response.set_id(id);
  *response.mutable_status() = ToProtoStatus(status);
  wire::MessageWriter writer;
  return writer.Build(response).value_or(grpc::ByteBuffer());
}

}  // namespace norm::server
