// How a client connects, retries and watches a transfer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/time/time.h"

namespace norm::client {

/// When and how often a call that ended in UNAVAILABLE is tried again. Every call of this API may
/// be repeated safely: the server keeps no state between them.
///
/// A server that is overloaded sends grpc-retry-pushback-ms: that time is waited instead of the
/// backoff, and a negative value forbids another try. No try starts, and no wait ends, past the
/// deadline of the call: the last error is returned at once instead.
struct RetryPolicy {
  int max_attempts = 4;                                     // tries in all; 1 never retries
  absl::Duration initial_backoff = absl::Milliseconds(20);  // wait before the second try
  absl::Duration max_backoff = absl::Seconds(1);
  double backoff_multiplier = 2.0;  // of one wait over the one before
  double jitter = 0.2;  // each wait is scaled by a random factor in [1 - jitter, 1 + jitter]
};

/// Options of a Client.
struct ClientOptions {
  RetryPolicy retry;
  // TCP connections; calls take them in turn. One connection carries about 1.5 GB/s each way.
  int connections = 1;
  // Largest reply taken. The default is the largest message of the protocol, so that the server's
  // limit is the one that counts.
  int64_t max_receive_bytes = INT32_MAX;
  // Pings on an idle connection with calls in flight, so that a vanished server is noticed. The
  // server must allow the rate.
  std::optional<absl::Duration> keepalive_interval;
};

/// How many bytes of a request the transport is done with; written by it, read by whoever shows
/// progress. gRPC 1.51 gives the memory of one message back all at once, when its last byte is
/// sent.
struct TransferProgress {
  std::atomic<int64_t> total_bytes{0};
  std::atomic<int64_t> sent_bytes{0};
};

/// Options of one call beside its deadline.
struct CallOptions {
  std::shared_ptr<TransferProgress> progress;  // optional
};

}  // namespace norm::client
