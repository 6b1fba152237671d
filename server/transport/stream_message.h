// What a stream reads and writes.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_reader.h"

namespace norm::server {

/// A message of the client as it came. Whoever borrows its tensor bytes holds it.
struct StreamMessage {
  norm::v1::StreamRequest request;
  wire::ReceivedMessage bytes;
  absl::Time received;
};

/// The final response of a request that failed.
grpc::ByteBuffer ErrorResponse(uint64_t id, const absl::Status& status);

}  // namespace norm::server
