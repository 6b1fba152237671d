// Requests as bytes, for calls that measure what moving them costs.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "norm/client/requests.h"

namespace norm::client {

/// The message that a request is sent as, encoded once. Copies share the bytes; tensors are
/// referenced as the calls do it (see TensorView).
class EncodedRequest {
 public:
  /// A message without bytes.
  EncodedRequest();
  /// Errors: as the call that would send the request.
  static absl::StatusOr<EncodedRequest> Of(const ForwardRequest& request);
  static absl::StatusOr<EncodedRequest> Of(const BackwardRequest& request);

  int64_t size_bytes() const;

 private:
  friend class Client;
  struct Message;
  explicit EncodedRequest(std::shared_ptr<const Message> message);

  std::shared_ptr<const Message> message_;
};

}  // namespace norm::client
