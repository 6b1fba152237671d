// The thread of a completion queue, and in which order it completes what has come.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "grpcpp/completion_queue.h"
#include "server/transport/call.h"
#include "server/transport/queue_inbox.h"

namespace norm::server {

/// Events that have come and are not completed yet: those of one flow in order, flows in turn.
///
/// Threads:  one.
class EventTurns {
 public:
  void Add(CompletionEvent* event, bool ok);
  bool empty() const { return turns_.empty(); }
  /// Completes the first event of the flow whose turn it is; there must be one.
  void CompleteNext();

 private:
  using Events = std::deque<std::pair<CompletionEvent*, bool>>;

  absl::flat_hash_map<uint64_t, Events> flows_;  // none without events
  std::deque<uint64_t> turns_;                   // the flows, the next one first
};

/// Completes the events of a queue and of its inbox until the queue is shut down and empty. gRPC
/// hands events out as they came: behind a connection with a hundred calls in flight, each call of
/// another one would wait for a hundred decodings and, when it is done, for a hundred responses. So
/// flows take turns while events come faster than they are completed.
void PollQueue(grpc::CompletionQueue& queue, QueueInbox& inbox);

/// Whether the calling thread is in PollQueue.
bool PollsQueue();

}  // namespace norm::server
