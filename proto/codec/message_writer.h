// Puts a protobuf message together around tensor bytes that stay where they are.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "norm/v1/tensor.pb.h"

namespace norm::wire {

/// Builds one ByteBuffer whose tensor bytes are slices over caller memory; any protobuf reader
/// understands the result.
///
/// Ownership: takes references to the attached slices; their memory is released when gRPC drops the
/// last one.
class MessageWriter {
 public:
  /// Makes `bytes` the content of `field`, which must be the data of a Tensor or a bytes field of
  /// InputRows or OutputRows, in the message given to Build. Overwrites it with a marker. An empty
  /// slice leaves it empty.
  void Attach(std::string* field, grpc::Slice bytes);

  /// The same over memory that `owner` keeps alive; gRPC drops the owner with its last reference, on
  /// a thread of its own.
  void Attach(std::string* field, absl::Span<const std::byte> bytes,
              std::shared_ptr<const void> owner);

  /// Both for the data of a tensor.
  void Attach(norm::v1::Tensor* tensor, grpc::Slice bytes) {
    Attach(tensor->mutable_data(), std::move(bytes));
  }
  void Attach(norm::v1::Tensor* tensor, absl::Span<const std::byte> bytes,
              std::shared_ptr<const void> owner) {
    Attach(tensor->mutable_data(), bytes, std::move(owner));
  }

  /// What was attached to `field`, and no longer is; an empty slice where nothing was.
  grpc::Slice Detach(std::string* field);

  /// Serializes `message` with the attached bytes in place of the markers. Tensors whose data was
  /// not attached must be empty. Errors: INTERNAL when protobuf refuses; INVALID_ARGUMENT when the
  /// message would pass 2 GiB - 1 bytes.
  absl::StatusOr<grpc::ByteBuffer> Build(const google::protobuf::Message& message);

 private:
  std::vector<grpc::Slice> payloads_;
};

}  // namespace norm::wire
