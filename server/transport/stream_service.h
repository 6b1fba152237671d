// NormalizationService.NormalizeStream: many requests on one call, told apart by id.
#pragma once

#include "grpcpp/completion_queue.h"
#include "server/transport/norm_service.h"
#include "server/transport/serving_context.h"

namespace norm::server {

/// Waits for one stream on `queue`; a stream that arrives arms its successor. `service`, `queue`,
/// its `inbox` and `context` must outlive all calls.
void ArmStreamCall(NormalizationAsyncService& service, grpc::ServerCompletionQueue& queue,
                   QueueInbox& inbox, const ServingContext& context);

}  // namespace norm::server
