// What an EncodedRequest holds.
#pragma once

#include "grpcpp/support/byte_buffer.h"
#include "norm/client/echo.h"

namespace norm::client {

struct EncodedRequest::Message {
  grpc::ByteBuffer bytes;
};

}  // namespace norm::client
