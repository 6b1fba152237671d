#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/normctl/commands.h"
#include "client/normctl/server_flags.h"
#include "nlohmann/json.hpp"

namespace norm::normctl {
namespace {

std::string DTypeNames(const std::vector<DType>& dtypes) {
  return absl::StrJoin(dtypes, " ",
                       [](std::string* out, DType dtype) { out->append(DTypeName(dtype)); });
}

nlohmann::json ToJson(const client::ServerInfo& info, const client::ServerStatistics& statistics) {
  nlohmann::json devices = nlohmann::json::array();
  for (const client::DeviceInfo& device : info.devices) {
    devices.push_back({{"name", device.name},
                       {"model", device.model},
                       {"memory_bytes", device.memory_bytes},
                       {"compute_capability", device.compute_capability},
                       {"multiprocessors", device.multiprocessors},
                       {"healthy", device.healthy}});
  }
  nlohmann::json capabilities = nlohmann::json::array();
  for (const client::Capability& capability : info.capabilities) {
    nlohmann::json weights = nlohmann::json::array();
    for (DType dtype : capability.weight_dtypes) weights.push_back(DTypeName(dtype));
    capabilities.push_back({{"op", capability.op},
                            {"direction", capability.direction},
                            {"dtype", DTypeName(capability.dtype)},
                            {"weight_dtypes", weights}});
  }
  const client::ServerLimits& limits = info.limits;
  return {{"version", info.version},
          {"build", info.build},
          {"cuda_architectures", info.cuda_architectures},
          {"uptime_seconds", info.uptime_seconds},
          {"draining", info.draining},
          {"unix_time_seconds", absl::ToDoubleSeconds(info.time - absl::UnixEpoch())},
          {"devices", devices},
          {"limits",
           {{"max_message_bytes", limits.max_message_bytes},
            {"max_in_flight_bytes", limits.max_in_flight_bytes},
            {"max_queue_requests", limits.max_queue_requests},
            {"max_batch_rows", limits.max_batch_rows},
            {"max_batch_bytes", limits.max_batch_bytes},
            {"slots_per_device", limits.slots_per_device},
            {"max_unsent_bytes", limits.max_unsent_bytes},
            {"write_timeout_us", limits.write_timeout_us},
            {"max_queue_delay_us", limits.max_queue_delay_us},
            {"max_stream_uploads", limits.max_stream_uploads},
            {"stream_window_bytes", limits.stream_window_bytes}}},
          {"capabilities", capabilities},
          {"statistics",
           {{"requests_ok", statistics.requests_ok},
            {"requests_failed", statistics.requests_failed},
            {"executions", statistics.executions},
            {"rows", statistics.rows},
            {"bytes_in", statistics.bytes_in},
            {"bytes_out", statistics.bytes_out},
            {"in_flight_requests", statistics.in_flight_requests},
            {"in_flight_bytes", statistics.in_flight_bytes},
            {"queued_requests", statistics.queued_requests}}}};
}

void PrintText(const client::ServerInfo& info, const client::ServerStatistics& statistics) {
  std::cout << absl::StrFormat(
      "normd %s (%s)%s, up %.0f s\ncuda: %s\n", info.version, info.build,
      info.draining ? ", draining" : "", info.uptime_seconds,
      info.cuda_architectures.empty()
          ? "not built in"
          : absl::StrCat("built for ", absl::StrJoin(info.cuda_architectures, " ")));
  for (const client::DeviceInfo& device : info.devices) {
    std::cout << absl::StrFormat(
        "device %s: %s, %d %s%s%s\n", device.name, device.model, device.multiprocessors,
        device.compute_capability == 0 ? "threads" : "multiprocessors",
        device.memory_bytes == 0
            ? ""
            : absl::StrFormat(", %.1f GiB", static_cast<double>(device.memory_bytes) /
                                                (1024.0 * 1024.0 * 1024.0)),
        device.healthy ? "" : ", NOT HEALTHY");
  }
  const client::ServerLimits& limits = info.limits;
  std::cout << absl::StrFormat(
      "limits: message %d MiB, in flight %d MiB, unsent %d MiB or %.3g s, queue %d requests, batch "
      "%d rows or %d MiB, gathering %d us, %d slots per device, "
      "%d chunked requests of %d MiB windows per stream\n",
      limits.max_message_bytes >> 20, limits.max_in_flight_bytes >> 20,
      limits.max_unsent_bytes >> 20, static_cast<double>(limits.write_timeout_us) * 1e-6,
      limits.max_queue_requests, limits.max_batch_rows, limits.max_batch_bytes >> 20,
      limits.max_queue_delay_us, limits.slots_per_device, limits.max_stream_uploads,
      limits.stream_window_bytes >> 20);
  std::cout << absl::StrFormat("%-12s %-10s %-6s %s\n", "op", "direction", "dtype",
                               "weight dtypes");
  for (const client::Capability& capability : info.capabilities) {
    std::cout << absl::StrFormat("%-12s %-10s %-6s %s\n", capability.op, capability.direction,
                                 DTypeName(capability.dtype), DTypeNames(capability.weight_dtypes));
  }
  std::cout << absl::StrFormat(
      "requests: %d ok, %d failed, %d launches, %d rows, %d bytes in, %d bytes out\n",
      statistics.requests_ok, statistics.requests_failed, statistics.executions, statistics.rows,
      statistics.bytes_in, statistics.bytes_out);
}

ExitCode RunInfo(const ServerFlags& flags) {
  absl::StatusOr<std::unique_ptr<client::Client>> connected = flags.Connect();
  if (!connected.ok()) return ReportError(connected.status());
  absl::StatusOr<client::ServerInfo> info = (*connected)->GetServerInfo(flags.timeout);
  if (!info.ok()) return ReportError(info.status());
  absl::StatusOr<client::ServerStatistics> statistics = (*connected)->GetStatistics(flags.timeout);
  if (!statistics.ok()) return ReportError(statistics.status());
  if (flags.format == OutputFormat::kJson) {
    std::cout << ToJson(*info, *statistics).dump(2) << '\n';
  } else {
    PrintText(*info, *statistics);
  }
  return kSuccess;
}

}  // namespace

void AddInfoCommand(CLI::App* app, ExitCode* result) {
  CLI::App* command = app->add_subcommand(
      "info", "Version, devices, limits, supported ops and statistics of the server");
  auto flags = std::make_shared<ServerFlags>();
  flags->AddTo(command);
  command->callback([flags, result] { *result = RunInfo(*flags); });
}

}  // namespace norm::normctl
