// The requests of one NormalizeStream: takes the messages that were read, holds what is to be
// written.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/transport/chunked_request.h"
#include "server/transport/exchange.h"
#include "server/transport/stream_message.h"
#include "server/transport/unsent_responses.h"

namespace norm::server {

/// Ownership:  a job keeps the stream alive through JobStarts and JobEnded, which the stream gives.
/// Threads:    safe; Accept from one thread at a time. Never calls the stream with its lock held.
class StreamRequests {
 public:
  /// Borrows all; `unsent` is used by it alone.
  StreamRequests(const ServingContext& context, CallTrace& trace, ChunkedRequest::Stream& stream,
                 UnsentResponses::OfCall& unsent)
      : context_(context), trace_(trace), stream_(stream), unsent_(unsent) {}
  ~StreamRequests();

  /// The stream's flow (see FlowOf) and deadline, before anything else.
  void Begin(uint64_t flow, absl::Time deadline);

  /// Takes one message. Whatever is wrong with it ends in a response under its id.
  void Accept(std::shared_ptr<StreamMessage> message) ABSL_LOCKS_EXCLUDED(mutex_);

  struct Outgoing {
    grpc::ByteBuffer bytes;
    int64_t size_bytes = 0;
    int64_t window_bytes = 0;
    std::shared_ptr<ChunkedRequest> request;  // null for responses of whole requests
    std::unique_ptr<SpanRecord> span;         // of the request that ends with it; may be null
  };
  /// The next message to write: responses of whole requests first, then chunked requests in turn.
  std::optional<Outgoing> TakeOutgoing() ABSL_LOCKS_EXCLUDED(mutex_);
  /// Once per TakeOutgoing, in order.
  void OnWritten(const Outgoing& written) ABSL_LOCKS_EXCLUDED(mutex_);

  /// Whether the stream is below its limits (ServingContext::stream).
  bool MayRead() const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Whether rows of some request may still come, and whether one would fail without them.
  bool AnyUploadOpen() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool AnyAwaitsRows() const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Nothing in flight, nothing to write.
  bool Idle() const ABSL_LOCKS_EXCLUDED(mutex_);

  /// Half-closed: requests that still wait for rows end with INVALID_ARGUMENT.
  void EndUploads() ABSL_LOCKS_EXCLUDED(mutex_);
  /// The client is gone: nothing can be written, nothing need be computed.
  void Break() ABSL_LOCKS_EXCLUDED(mutex_);

  /// Ends chunked requests whose time is up.
  void Expire(absl::Time now, bool reading) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Time NextTimeout(bool reading) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct WholeRequest;
  using Chunked = std::vector<std::shared_ptr<ChunkedRequest>>;

  void AcceptRows(const std::shared_ptr<StreamMessage>& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void AcceptCancel(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);
  void AcceptHeader(std::shared_ptr<StreamMessage> message, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void AcceptWhole(std::shared_ptr<StreamMessage> message, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  /// Whether `id` is free for a new request; where it is not, the violation is answered.
  bool CheckNewId(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnJobDone(WholeRequest& one, JobResult result) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Ends one whole request that was in flight.
  void Complete(WholeRequest& one, const absl::Status& status, const grpc::ByteBuffer& response)
      ABSL_LOCKS_EXCLUDED(mutex_);
  /// Answers a message that starts or belongs to no request.
  void Refuse(uint64_t id, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void EnqueueLocked(const grpc::ByteBuffer& response, std::unique_ptr<SpanRecord> span = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<ChunkedRequest> FindChunked(uint64_t id) const ABSL_LOCKS_EXCLUDED(mutex_);
  Chunked AllChunked() const ABSL_LOCKS_EXCLUDED(mutex_);
  void DropClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ServingContext& context_;
  CallTrace& trace_;
  ChunkedRequest::Stream& stream_;
  uint64_t flow_ = 0;
  absl::Time deadline_ = absl::InfiniteFuture();

  mutable std::mutex mutex_;
  UnsentResponses::OfCall& unsent_ ABSL_GUARDED_BY(mutex_);
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<uint64_t, std::shared_ptr<std::atomic<bool>>> whole_ ABSL_GUARDED_BY(mutex_);
  Chunked chunked_ ABSL_GUARDED_BY(mutex_);  // whose turn it is to write comes first
  std::deque<Outgoing> outbox_ ABSL_GUARDED_BY(mutex_);
  // Of the outbox, and taken from it and not yet written.
  int64_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace norm::server
