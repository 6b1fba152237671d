// Requests as bytes, for calls that measure what moving them costs.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
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
  friend class EchoStream;
  struct Message;
  explicit EncodedRequest(std::shared_ptr<const Message> message);

  std::shared_ptr<const Message> message_;
};

/// One stream of echoes: each message comes back, in order. Threads: any.
class EchoStream {
 public:
  /// Echoes that wait end with UNAVAILABLE.
  ~EchoStream();
  EchoStream(const EchoStream&) = delete;
  EchoStream& operator=(const EchoStream&) = delete;

  /// Sends the bytes of `request`, the first nine of which ask for the size, and waits for
  /// `response_bytes` bytes; a request of less than nine bytes comes back as it is. Errors: as
  /// Client::Echo; the stream's own once it has ended.
  absl::Status Echo(const EncodedRequest& request, int64_t response_bytes, absl::Duration timeout);

 private:
  friend class Client;
  class Impl;
  explicit EchoStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace norm::client
