// Many requests in flight on one gRPC stream.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "norm/client/options.h"
#include "norm/client/requests.h"

namespace norm::client {

/// Options of a NormalizeStream.
struct StreamOptions {
  // Requests that have not left yet; Submit waits while more than this is queued.
  int64_t max_unsent_bytes = int64_t{256} << 20;
  ChunkOptions chunks;
  // Requests that travel in rows at once; more wait for their turn. The server's max_stream_uploads
  // or less.
  int max_uploads = 16;
};

/// A bidirectional stream: requests go out in order of submission, results come back in order of
/// completion.
///
/// Completion: exactly one per submitted request, whatever happens: the result, the request's own
/// error (which leaves the
///             stream open), DEADLINE_EXCEEDED at the request's deadline even from a silent server,
///             the stream's error when it breaks (UNAVAILABLE when the server cuts it off; once it
///             has ended UNAVAILABLE too, but UNAUTHENTICATED or PERMISSION_DENIED where the server
///             does not let the caller in),
///             CANCELLED when it is destroyed.
/// Retries:    none; a request that failed with UNAVAILABLE is submitted again by the caller, on a
///             stream that is opened anew where status() is not OK (CallWithRetries does the waiting).
/// Threads:    every method may be called from several threads at once. Callbacks run one at a time
///             on a thread of the stream (one, and two more once tensors travel in rows); they may
///             submit, and must not call Finish or destroy the stream.
/// Ownership:  joins its threads on destruction, after every completion was delivered. Where no thread
///             can be started every request completes with UNAVAILABLE; status() says why.
class NormalizeStream {
 public:
  using ForwardCallback = std::function<void(absl::StatusOr<ForwardResult>)>;
  using BackwardCallback = std::function<void(absl::StatusOr<BackwardResult>)>;

  /// Cancels what is in flight.
  ~NormalizeStream();
  NormalizeStream(const NormalizeStream&) = delete;
  NormalizeStream& operator=(const NormalizeStream&) = delete;

  /// Submits a request that completes within `timeout` (positive and finite). Waits for room in the
  /// send queue, at most until the request's deadline; in a callback it never waits. Errors that
  /// need no server complete before it returns.
  void Normalize(const ForwardRequest& request, absl::Duration timeout, ForwardCallback done);
  void NormalizeBackward(const BackwardRequest& request, absl::Duration timeout,
                         BackwardCallback done);
  std::future<absl::StatusOr<ForwardResult>> Normalize(const ForwardRequest& request,
                                                       absl::Duration timeout);
  std::future<absl::StatusOr<BackwardResult>> NormalizeBackward(const BackwardRequest& request,
                                                                absl::Duration timeout);

  /// Submits no more, waits until every request has completed and the server has closed the stream.
  /// Errors: the stream's final status, DEADLINE_EXCEEDED when that took longer than `timeout` (the
  /// stream is then cancelled).
  absl::Status Finish(absl::Duration timeout);

  /// OK while the stream takes requests; then what a request would be told.
  absl::Status status() const;

  /// Requests submitted and not completed.
  int64_t in_flight() const;

 private:
  friend class Client;
  class Impl;
  explicit NormalizeStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace norm::client
