#include "server_info_decoder.h"

#include <optional>
#include <utility>

#include "proto/codec/dtype_mapping.h"

namespace norm::client {
namespace {

DeviceInfo Decode(const norm::v1::Device& device) {
  return DeviceInfo{.name = device.name(),
                    .model = device.model(),
                    .memory_bytes = device.memory_bytes(),
                    .compute_capability = device.compute_capability(),
                    .multiprocessors = device.multiprocessors(),
                    .healthy = device.healthy()};
}

ServerLimits Decode(const norm::v1::Limits& limits) {
  return ServerLimits{.max_message_bytes = limits.max_message_bytes(),
                      .max_in_flight_bytes = limits.max_in_flight_bytes(),
                      .max_queue_requests = limits.max_queue_requests(),
                      .max_batch_rows = limits.max_batch_rows(),
                      .max_batch_bytes = limits.max_batch_bytes(),
                      .slots_per_device = limits.slots_per_device(),
                      .max_unsent_bytes = limits.max_unsent_bytes(),
                      .write_timeout_us = limits.write_timeout_us(),
                      .max_queue_delay_us = limits.max_queue_delay_us(),
                      .max_stream_uploads = limits.max_stream_uploads(),
                      .stream_window_bytes = limits.stream_window_bytes()};
}

}  // namespace

ServerInfo Decode(const norm::v1::ServerInfo& message) {
  ServerInfo info;
  info.version = message.version();
  info.build = message.build();
  info.cuda_architectures.assign(message.cuda_architectures().begin(),
                                 message.cuda_architectures().end());
  for (const norm::v1::Device& device : message.devices()) info.devices.push_back(Decode(device));
  info.limits = Decode(message.limits());
  for (const norm::v1::Capability& capability : message.capabilities()) {
    const std::optional<DType> dtype = wire::FromProto(capability.dtype());
    if (!dtype.has_value()) continue;  // of a newer server
    Capability entry{.op = capability.op(),
                     .direction = capability.direction(),
                     .dtype = *dtype,
                     .weight_dtypes = {}};
    for (int weight_dtype : capability.weight_dtypes()) {
      if (auto known = wire::FromProto(static_cast<norm::v1::DType>(weight_dtype)))
        entry.weight_dtypes.push_back(*known);
    }
    info.capabilities.push_back(std::move(entry));
  }
  info.uptime_seconds = message.uptime_seconds();
  info.draining = message.draining();
  info.time = absl::UnixEpoch() + absl::Seconds(message.unix_time_seconds());
  return info;
}

ServerStatistics Decode(const norm::v1::ServerStatistics& message) {
  const auto stage = [](const norm::v1::StageTotal& total) {
    return StageTotal{.requests = total.requests(), .seconds = total.seconds()};
  };
  return ServerStatistics{.requests_ok = message.requests_ok(),
                          .requests_failed = message.requests_failed(),
                          .executions = message.executions(),
                          .rows = message.rows(),
                          .bytes_in = message.bytes_in(),
                          .bytes_out = message.bytes_out(),
                          .in_flight_requests = message.in_flight_requests(),
                          .in_flight_bytes = message.in_flight_bytes(),
                          .queued_requests = message.queued_requests(),
                          .encode = stage(message.encode()),
                          .send = stage(message.send())};
}

}  // namespace norm::client
