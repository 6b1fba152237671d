// Takes a received protobuf message apart without copying tensor bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "norm/v1/tensor.pb.h"

namespace norm::wire {

/// The bytes of one tensor, or of some of its rows, as they lie in the receive buffers: runs in order, at any
/// alignment.
struct Payload {
  std::vector<absl::Span<const std::byte>> runs;
  int64_t size_bytes = 0;

  /// Copies all runs, one after another, to `destination` (size_bytes bytes).
  void CopyTo(std::byte* destination) const;
};

/// A message whose tensor bytes (Tensor.data, and the tensors of InputRows and OutputRows) stay in
/// gRPC's slices.
///
/// Parse walks the wire format, parses everything but tensor bytes with protobuf, and notes where
/// the bytes are. Any field order, repeated and unknown fields are understood as protobuf would
/// understand them; groups, which proto3 does not have, are refused beside tensors. In `header` every such field
/// that is not empty holds a marker instead of the bytes; payload() looks the bytes up by it.
///
/// Ownership: keeps references to the slices; payloads are valid while this object lives.
/// Threads:   const use from several threads.
class ReceivedMessage {
 public:
  ReceivedMessage() = default;
  ReceivedMessage(ReceivedMessage&&) = default;
  ReceivedMessage& operator=(ReceivedMessage&&) = default;
  // Small slices hold their bytes inside themselves: a copy would leave the payloads pointing into
  // the original.
  ReceivedMessage(const ReceivedMessage&) = delete;
  ReceivedMessage& operator=(const ReceivedMessage&) = delete;

  /// Largest total size of everything that is not tensor bytes.
  static constexpr int64_t kMaxHeaderBytes = 1 << 20;

  /// Errors: INVALID_ARGUMENT when the bytes are no valid message of header's type, or the header
  /// is too large.
  absl::Status Parse(const grpc::ByteBuffer& buffer, google::protobuf::Message* header);

  /// The bytes of `tensor`, which must be part of the header given to Parse. Empty when it carries
  /// none.
  const Payload& payload(const norm::v1::Tensor& tensor) const { return payload(tensor.data()); }
  /// The same for a bytes field of InputRows or OutputRows.
  const Payload& payload(const std::string& marker) const;

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<Payload> payloads_;
  Payload empty_;
};

}  // namespace norm::wire
