// Typed requests as protobuf messages around tensor bytes that are not copied into protobuf.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "norm/client/options.h"
#include "norm/client/requests.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_writer.h"

namespace norm::client {

/// Fills `message` and attaches the tensors to `writer`. Errors: INVALID_ARGUMENT naming the tensor
/// whose view contradicts itself.
absl::Status Encode(const ForwardRequest& request, wire::MessageWriter* writer,
                    norm::v1::NormalizeRequest* message);
absl::Status Encode(const BackwardRequest& request, wire::MessageWriter* writer,
                    norm::v1::NormalizeBackwardRequest* message);

/// The same bytes in pieces that report to `progress` as the transport drops them.
grpc::ByteBuffer WithProgress(const grpc::ByteBuffer& buffer,
                              const std::shared_ptr<TransferProgress>& progress);

}  // namespace norm::client
