#include "server/transport/server_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "proto/codec/dtype_mapping.h"
#include "server/transport/middleware/call_trace.h"

namespace norm::server {
namespace {

/// Everything the kernels take: each op, direction and dtype, with weights in the dtype of x or
/// f32.
void FillCapabilities(norm::v1::ServerInfo* info) {
  for (int op = 0; op < kOpCount; ++op) {
    for (int direction = 0; direction < kDirectionCount; ++direction) {
      for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
        norm::v1::Capability* capability = info->add_capabilities();
        capability->set_op(OpName(static_cast<Op>(op)));
        capability->set_direction(DirectionName(static_cast<Direction>(direction)));
        capability->set_dtype(wire::ToProto(static_cast<DType>(dtype)));
        for (int weight = 0; weight < kDTypeCount; ++weight) {
          if (IsSupportedWeightDType(static_cast<DType>(dtype), static_cast<DType>(weight))) {
            capability->add_weight_dtypes(wire::ToProto(static_cast<DType>(weight)));
          }
        }
      }
    }
  }
}

/// The span and the request id of a call that cannot fail, from its beginning to its end.
class PlainCall {
 public:
  PlainCall(const ServingContext& context, grpc::ServerContext& call, const char* method)
      : context_(context), trace_(context, call, method) {
    trace_.Begin();
    span_ = trace_.NewCallSpan(context.clock.Now());
  }
  ~PlainCall() {
    trace_.Answer(absl::OkStatus());
    trace_.Record(std::move(span_), context_.clock.Now(), /*sent=*/true);
  }
  PlainCall(const PlainCall&) = delete;
  PlainCall& operator=(const PlainCall&) = delete;

 private:
  const ServingContext& context_;
  CallTrace trace_;
  std::unique_ptr<SpanRecord> span_;
};

}  // namespace

ServerService::ServerService(ServerDescription description, const ServingContext& context)
    : description_(std::move(description)), context_(context), started_(context.clock.Now()) {}

grpc::Status ServerService::GetServerInfo(grpc::ServerContext* call,
                                          const norm::v1::GetServerInfoRequest*,
                                          norm::v1::ServerInfo* response) {
  const PlainCall traced(context_, *call, "norm.v1.ServerService/GetServerInfo");
  response->set_version(description_.version);
  response->set_build(description_.build);
  for (const std::string& architecture : description_.cuda_architectures) {
    response->add_cuda_architectures(architecture);
  }
  int slots = 0;
  for (const DeviceDescription& device : description_.devices) {
    norm::v1::Device* out = response->add_devices();
    out->set_name(device.name);
    out->set_model(device.model);
    out->set_memory_bytes(device.memory_bytes);
    out->set_compute_capability(device.compute_capability);
    out->set_multiprocessors(device.multiprocessors);
    out->set_healthy(device.healthy && device.healthy());
    slots = std::max(slots, device.slots);
  }
  norm::v1::Limits* limits = response->mutable_limits();
  limits->set_max_message_bytes(description_.max_message_bytes);
  limits->set_max_in_flight_bytes(description_.max_in_flight_bytes);
  limits->set_max_queue_requests(description_.max_queue_requests);
  limits->set_max_batch_rows(description_.max_batch_rows);
  limits->set_max_batch_bytes(description_.max_batch_bytes);
  limits->set_max_unsent_bytes(description_.max_unsent_bytes);
  limits->set_write_timeout_us(description_.write_timeout_us);
  limits->set_max_queue_delay_us(description_.max_queue_delay_us);
  limits->set_slots_per_device(static_cast<uint32_t>(slots));
  limits->set_max_stream_uploads(static_cast<uint64_t>(context_.stream.max_uploads));
  limits->set_stream_window_bytes(static_cast<uint64_t>(context_.stream.window_bytes));
  FillCapabilities(response);
  response->set_uptime_seconds(absl::ToDoubleSeconds(context_.clock.Now() - started_));
  response->set_unix_time_seconds(absl::ToDoubleSeconds(context_.clock.Now() - absl::UnixEpoch()));
  response->set_draining(draining_.load(std::memory_order_relaxed));
  return grpc::Status::OK;
}

grpc::Status ServerService::GetStatistics(grpc::ServerContext* call,
                                          const norm::v1::GetStatisticsRequest*,
                                          norm::v1::ServerStatistics* response) {
  const PlainCall traced(context_, *call, "norm.v1.ServerService/GetStatistics");
  const Metrics::Totals totals = context_.metrics.totals();
  response->set_requests_ok(totals.requests_ok);
  response->set_requests_failed(totals.requests_failed);
  response->set_executions(totals.executions);
  response->set_rows(totals.rows);
  response->set_bytes_in(totals.bytes_in);
  response->set_bytes_out(totals.bytes_out);
  const auto fill = [](const Metrics::StageTotal& stage, norm::v1::StageTotal* out) {
    out->set_requests(stage.requests);
    out->set_seconds(stage.seconds);
  };
  fill(totals.encode, response->mutable_encode());
  fill(totals.send, response->mutable_send());
  const SchedulerLoad load = context_.scheduler.Load();
  response->set_in_flight_requests(static_cast<uint64_t>(load.in_flight_requests));
  response->set_in_flight_bytes(static_cast<uint64_t>(load.in_flight_bytes));
  response->set_queued_requests(static_cast<uint64_t>(load.queued_requests));
  return grpc::Status::OK;
}

}  // namespace norm::server
