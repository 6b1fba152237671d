// How the requests of a load travel: the transports of the server, and its echo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/normctl/load_options.h"
#include "client/normctl/prepared_case.h"
#include "norm/client/client.h"

namespace norm::normctl {

struct LoadReply {
  int64_t bytes_sent = 0;      // of tensors; of whole messages for an echo
  int64_t bytes_received = 0;  // likewise
  int64_t message_bytes = 0;   // of the response
  client::Timing timing;       // zeros for an echo
  int64_t tries = 1;
};

/// One connection to the server. Threads: any.
class LoadConnection {
 public:
  virtual ~LoadConnection() = default;
  /// Sends request `ordinal` of case `case_index` and waits for its answer, which is checked.
  virtual absl::StatusOr<LoadReply> Send(size_t case_index, int64_t ordinal,
                                         absl::Duration timeout) = 0;
};

/// Requests of `cases` over `transport`; a stream that breaks fails its requests and is opened again
/// for the next ones. Ownership: borrows client and cases. Errors: UNAVAILABLE
/// where a stream cannot be opened.
absl::StatusOr<std::unique_ptr<LoadConnection>> OpenConnection(
    client::Client& client, const std::vector<PreparedCase>& cases, LoadTransport transport);

/// Requests of `connection` that end in UNAVAILABLE are sent again as `policy` says.
std::unique_ptr<LoadConnection> WithRetries(std::unique_ptr<LoadConnection> connection,
                                            const client::RetryPolicy& policy);

/// Echoes of the same requests, each with a response of as many bytes as
/// `response_bytes[case_index]`; or of messages without bytes.
std::unique_ptr<LoadConnection> OpenEcho(client::Client& client,
                                         const std::vector<PreparedCase>& cases,
                                         LoadTransport transport, EchoSize size,
                                         const std::vector<int64_t>& response_bytes);

}  // namespace norm::normctl
