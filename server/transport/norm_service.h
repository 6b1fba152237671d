// The unary methods of NormalizationService: Normalize and NormalizeBackward.
#pragma once

#include "grpcpp/completion_queue.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "server/transport/queue_inbox.h"
#include "server/transport/serving_context.h"

namespace norm::server {

/// NormalizationService with raw bytes in and out, each method served through completion queues.
using NormalizationAsyncService = norm::v1::NormalizationService::WithRawMethod_Normalize<
    norm::v1::NormalizationService::WithRawMethod_NormalizeBackward<
        norm::v1::NormalizationService::WithRawMethod_NormalizeStream<
            norm::v1::NormalizationService::Service>>>;

/// Waits for one call of each unary method on `queue`; each call that arrives arms its successor.
/// `service`, `queue`, its `inbox` and `context` must outlive all calls.
void ArmUnaryCalls(NormalizationAsyncService& service, grpc::ServerCompletionQueue& queue,
                   QueueInbox& inbox, const ServingContext& context);

}  // namespace norm::server
