// The threads of a completion queue.
#pragma once

#include "grpcpp/completion_queue.h"
#include "server/transport/queue_inbox.h"

namespace norm::server {

/// Completes the events of a queue and of its inbox until the queue is shut down and empty: what one
/// of the queue's threads does.
void PollQueue(grpc::CompletionQueue& queue, QueueInbox& inbox);

/// Whether the calling thread is in PollQueue.
bool PollsQueue();

}  // namespace norm::server
