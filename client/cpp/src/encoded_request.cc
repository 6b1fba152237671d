#include "encoded_request.h"

#include <utility>

#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_writer.h"
#include "request_encoder.h"

namespace norm::client {
namespace {

template <typename Message, typename Request>
absl::StatusOr<grpc::ByteBuffer> EncodeAs(const Request& request) {
  wire::MessageWriter writer;
  Message message;
  if (absl::Status status = Encode(request, &writer, &message); !status.ok()) return status;
  return writer.Build(message);
}

}  // namespace

EncodedRequest::EncodedRequest() {
  // A buffer without a slice is none to gRPC.
  const grpc::Slice nothing;
  message_ = std::make_shared<const Message>(Message{grpc::ByteBuffer(&nothing, 1)});
}
EncodedRequest::EncodedRequest(std::shared_ptr<const Message> message)
    : message_(std::move(message)) {}

absl::StatusOr<EncodedRequest> EncodedRequest::Of(const ForwardRequest& request) {
  absl::StatusOr<grpc::ByteBuffer> bytes = EncodeAs<norm::v1::NormalizeRequest>(request);
  if (!bytes.ok()) return bytes.status();
  return EncodedRequest(std::make_shared<const Message>(Message{*std::move(bytes)}));
}

absl::StatusOr<EncodedRequest> EncodedRequest::Of(const BackwardRequest& request) {
  absl::StatusOr<grpc::ByteBuffer> bytes = EncodeAs<norm::v1::NormalizeBackwardRequest>(request);
  if (!bytes.ok()) return bytes.status();
  return EncodedRequest(std::make_shared<const Message>(Message{*std::move(bytes)}));
}

int64_t EncodedRequest::size_bytes() const {
  return static_cast<int64_t>(message_->bytes.Length());
}

}  // namespace norm::client
