// How a client connects, retries and watches a transfer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

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

/// How requests with large tensors travel: in rows over a NormalizeStream, up and down at the same
/// time, so that they may be larger than a message and, where rows do not depend on each other,
/// larger than the device's memory.
struct ChunkOptions {
  // Requests with more bytes of tensors in the shape of x go in rows; smaller ones in one message.
  // Must stay below the server's max_message_bytes.
  int64_t above_bytes = int64_t{128} << 20;
  int64_t chunk_bytes = int64_t{4} << 20;  // of one message; one row at least
  // Rows sent and not yet returned; the server's stream_window_bytes or less holds up no other
  // request of a stream.
  int64_t window_bytes = int64_t{64} << 20;
};

/// How connections are encrypted, and who each end shows to be. TLS 1.2 or later. Files are PEM,
/// checked by Client::Create and looked at again, once a second at most, as calls are made: when they
/// have changed and can be used, later calls and streams go over new connections. Files that cannot be
/// used leave what was read before.
struct TlsOptions {
  // Authorities that the server's certificate must lead to; empty: the system's.
  std::string root_ca_file;
  // The client's certificate, with those that lead to its root, and its key: both, or neither for a
  // server that asks for none.
  std::string cert_file;
  std::string key_file;
  // What the server's certificate must name (DNS name or IP address); empty: the host of the address.
  // For a server that is reached by another address than its certificate has.
  std::string server_name;
};

/// What logs and traces know a call by. A member that is empty, or that CheckIdentity refuses, is not
/// sent.
struct CallIdentity {
  // W3C trace context of the span that calls: a call's spans are its children; and what comes with it.
  std::string traceparent;
  std::string tracestate;
  // 1 to 128 visible ASCII characters. The server makes one for calls that fail without any.
  std::string request_id;
};

/// Options of a Client.
struct ClientOptions {
  std::optional<TlsOptions> tls;  // absent: plaintext
  // Bearer token of every call: itself, or a file that holds it alone (read again when it changes; a
  // file that cannot be used meanwhile leaves the last token). Neither is ever shown in an error. It
  // never travels unencrypted to another machine: without TLS, Client::Create refuses addresses but
  // loopback ones, localhost and Unix sockets.
  std::string token;
  std::string token_file;
  RetryPolicy retry;
  ChunkOptions chunks;  // of calls; streams have their own
  // TCP connections to each server; calls take them in turn. One connection carries about 1.5 GB/s
  // each way.
  int connections = 1;
  // Largest reply taken. The default is the largest message of the protocol, so that the server's
  // limit is the one that counts.
  int64_t max_receive_bytes = INT32_MAX;
  // Pings on an idle connection with calls in flight, so that a vanished server is noticed. The
  // server must allow the rate. Absent: 20 s with replicas, none with one server.
  std::optional<absl::Duration> keepalive_interval;
  // Asked once for each call and for each stream that is opened, on the thread that does it: here a
  // tracing library says which span is current. All tries of a call carry the same answer, since this
  // client records no spans of its own. May be empty.
  std::function<CallIdentity()> identify;
};

/// How many bytes of a request the transport is done with, and how much of its result has come;
/// written by it, read by whoever shows progress. gRPC 1.51 gives the memory of one message back all
/// at once, when its last byte is sent: only a request in rows shows steps.
struct TransferProgress {
  std::atomic<int64_t> total_bytes{0};
  std::atomic<int64_t> sent_bytes{0};
  std::atomic<double> returned{0};  // share of the result, of a request in rows
};

/// Options of one call beside its deadline.
struct CallOptions {
  std::shared_ptr<TransferProgress> progress;  // optional
};

}  // namespace norm::client
