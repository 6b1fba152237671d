// EchoService: sends messages back, on the queues and threads of the data path.
#pragma once

#include "grpcpp/completion_queue.h"
#include "norm/v1/echo.grpc.pb.h"
#include "server/transport/serving_context.h"

namespace norm::server {

using EchoAsyncService = norm::v1::EchoService::WithRawMethod_Echo<
    norm::v1::EchoService::WithRawMethod_EchoStream<norm::v1::EchoService::Service>>;

/// Waits for one call on `queue`; a call that arrives arms its successor. `service`, `queue` and
/// `context` must outlive all calls.
void ArmEchoCall(EchoAsyncService& service, grpc::ServerCompletionQueue& queue,
                 const ServingContext& context);
/// The same for one stream.
void ArmEchoStream(EchoAsyncService& service, grpc::ServerCompletionQueue& queue,
                   const ServingContext& context);

}  // namespace norm::server
