// normd: builds every object, passes references down, drains in reverse.
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/config/command_line.h"
#include "server/config/server_config.h"
#include "server/config/shutdown_signals.h"
#include "server/device/device_registry.h"
#include "server/observability/gpu_readers_end.h"
#include "server/observability/logging.h"
#include "server/observability/metrics.h"
#include "server/observability/metrics_endpoint.h"
#include "server/observability/span_log.h"
#include "server/process_group/process_group.h"
#include "server/scheduler/batching_scheduler.h"
#include "server/transport/grpc_log.h"
#include "server/transport/grpc_server.h"
#include "server/transport/receive_memory.h"

namespace norm::server {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitDevicesLost = 4;

constexpr absl::Duration kHealthInterval = absl::Milliseconds(250);

/// Messages live in gRPC's slices of 8 and 64 KiB. By default glibc gives freed ones back to the
/// kernel at once, so that those of every message are fresh pages, which the kernel clears: 64 MiB
/// messages on one connection reach 1.6 GB/s that way, and 3.1 GB/s in heaps that keep what they
/// have. Sixteen heaps: threads wait for one that they share (1 to 4 % more small calls/s than with
/// four in two rounds; H200 machine, 16 cores). The padding keeps glibc from unmapping parts
/// of a heap, and is address space alone. What is kept is bounded by what was in flight at once, in
/// each heap: 2.8 GB after 64 MiB messages on four connections, 2.4 with four heaps.
void KeepFreedMemory() {
  ::mallopt(M_ARENA_MAX, 16);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_TOP_PAD, 1 << 30);
}

/// gRPC's mutexes are Abseil's, and those of Debian are built with the search for deadlocks, which
/// takes one spin lock of the whole process twice for each time that any of them is held.
void LeaveMutexesUnwatched() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

int Fail(int exit_code, const absl::Status& status) {
  std::fprintf(stderr, "normd: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

BuildInfo ThisBuild() { return {NORM_VERSION, NORM_COMPILER, NORM_CUDA_ARCHITECTURES}; }

ServerDescription Describe(const ServerConfig& config, const DeviceRegistry& registry) {
  ServerDescription description;
  const BuildInfo build = ThisBuild();
  description.version = build.version;
  description.build = build.compiler;
  description.cuda_architectures = absl::StrSplit(build.cuda_architectures, ' ', absl::SkipEmpty());
  for (size_t i = 0; i < registry.devices().size(); ++i) {
    const DeviceFacts& facts = registry.devices()[i];
    DeviceDescription device;
    device.name = facts.name;
    device.model = facts.model;
    device.memory_bytes = static_cast<uint64_t>(facts.memory_bytes);
    device.compute_capability = facts.compute_capability;
    device.multiprocessors = facts.multiprocessors;
    device.slots = registry.executors()[i]->slots();
    device.healthy = [&registry, i] { return registry.healthy(i); };
    description.devices.push_back(std::move(device));
  }
  description.max_message_bytes = static_cast<uint64_t>(config.grpc.max_message_bytes);
  description.max_in_flight_bytes = static_cast<uint64_t>(config.scheduler.max_in_flight_bytes);
  description.max_queue_requests = static_cast<uint64_t>(config.scheduler.max_queue_requests);
  description.max_batch_rows = static_cast<uint64_t>(config.scheduler.max_batch_rows);
  description.max_batch_bytes = static_cast<uint64_t>(config.scheduler.max_batch_bytes);
  description.max_unsent_bytes = static_cast<uint64_t>(config.grpc.max_unsent_bytes);
  description.write_timeout_us =
      static_cast<uint64_t>(absl::ToInt64Microseconds(config.grpc.write_timeout));
  description.max_queue_delay_us =
      static_cast<uint64_t>(absl::ToInt64Microseconds(config.scheduler.max_queue_delay));
  return description;
}

std::vector<DeviceStatus> Statuses(const DeviceRegistry& registry) {
  std::vector<DeviceStatus> statuses;
  for (size_t i = 0; i < registry.devices().size(); ++i) {
    const DeviceFacts& facts = registry.devices()[i];
    statuses.push_back({.model = facts.model,
                        .gpu = facts.kind == DeviceKind::kCuda,
                        .memory_bytes = facts.memory_bytes,
                        .healthy = [&registry, i] { return registry.healthy(i); }});
  }
  return statuses;
}

/// Appears in one step: a reader sees nothing or everything.
absl::Status WritePortFile(const std::string& path, const std::string& grpc_address,
                           const std::vector<std::string>& metrics_addresses) {
  std::error_code ignored;
  const std::filesystem::file_status before = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(before) && !std::filesystem::is_regular_file(before)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--port_file: ", path, " exists and is not a regular file"));
  }
  const std::string unfinished = path + ".unfinished";
  std::ofstream file(unfinished);
  file << "grpc=" << grpc_address << "\n";
  for (const std::string& address : metrics_addresses) file << "metrics=" << address << "\n";
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("--port_file: cannot write ", path));
  }
  return absl::OkStatus();
}

/// Until a signal comes or every device is lost.
int Serve(ShutdownSignals& signals, const DeviceRegistry& registry, GrpcServer& server,
          const Logger& log) {
  for (;;) {
    if (const auto signal = signals.Wait(kHealthInterval); signal.has_value()) {
      log.Info("signal", {{"number", absl::StrCat(*signal)}});
      return 0;
    }
    const bool healthy = registry.any_healthy();
    server.SetHealthy(healthy);
    if (!healthy) {
      log.Error("no healthy device is left");
      return kExitDevicesLost;
    }
  }
}

/// Without it, which costs a copy of what is received, the server works all the same.
void PrepareReceiveMemory(const ServerConfig& config, const DeviceRegistry& registry,
                          Metrics& metrics, const Logger& log) {
  const int64_t bytes = config.receive_memory_bytes;
  if (bytes == 0) return;
  auto memory = registry.PageLockedMemory(bytes);
  if (!memory.ok()) {
    log.Warning("receive memory", {{"problem", std::string(memory.status().message())}});
  } else if (*memory != nullptr) {
    ReceiveInto(*std::move(memory), bytes);
    metrics.SetReceiveMemoryReader(UseOfReceiveMemory);
  }
}

/// Null where none is asked for.
absl::StatusOr<std::unique_ptr<SpanLog>> OpenSpanLog(SpanLogOptions options, Metrics& metrics,
                                                     const Logger& log) {
  if (options.path.empty()) return nullptr;
  options.version = ThisBuild().version;
  absl::StatusOr<std::unique_ptr<SpanLog>> spans = SpanLog::Open(options, metrics, log);
  if (spans.ok()) return spans;
  return absl::InvalidArgumentError(absl::StrCat("--trace_log: ", spans.status().message()));
}

int RunOn(const std::vector<DeviceFacts>& devices, const ServerConfig& config,
          ShutdownSignals& signals, Metrics& metrics, const Logger& log) {
  const auto spans = OpenSpanLog(config.spans, metrics, log);
  if (!spans.ok()) return Fail(kExitFailed, spans.status());
  auto registry = DeviceRegistry::Create(devices, config.device_options, metrics);
  if (!registry.ok()) return Fail(kExitFailed, registry.status());
  PrepareReceiveMemory(config, **registry, metrics, log);
  BatchingScheduler scheduler((*registry)->executors(), config.scheduler, Clock::Real(), metrics);
  auto endpoint = MetricsEndpoint::Start(config.metrics_listen, metrics, Statuses(**registry));
  if (!endpoint.ok()) return Fail(kExitFailed, endpoint.status());
  GrpcServerOptions grpc = config.grpc;
  grpc.spans = spans->get();
  auto server =
      GrpcServer::Start(grpc, Describe(config, **registry), scheduler, metrics, Clock::Real(), log);
  if (!server.ok()) return Fail(kExitFailed, server.status());
  (*server)->SetHealthy((*registry)->any_healthy());

  if (!config.port_file.empty()) {
    const absl::Status status =
        WritePortFile(config.port_file, (*server)->address(), {(*endpoint)->address()});
    if (!status.ok()) return Fail(kExitFailed, status);
  }
  for (const DeviceFacts& device : (*registry)->devices()) {
    log.Info("device", {{"name", device.name},
                        {"model", device.model},
                        {"start_up_ms", absl::StrCat(absl::ToInt64Milliseconds(device.start_up))}});
  }
  std::printf("normd ready grpc=%s metrics=%s\n", (*server)->address().c_str(),
              (*endpoint)->address().c_str());
  std::fflush(stdout);

  const int exit_code = Serve(signals, **registry, **server, log);
  signals.ExitOnNext();
  // One end for both: whoever waits for this process counts with the sum of the two flags.
  const absl::Time end = absl::Now() + config.grpc.drain_delay + config.grpc.drain_timeout;
  absl::Status drained = (*server)->Drain();
  drained.Update(scheduler.Drain(end));
  if (!drained.ok()) {
    log.Warning("drain", {{"problem", std::string(drained.message())}});
    return exit_code != 0 ? exit_code : kExitFailed;
  }
  log.Info("drained");
  return exit_code;
}

int Run(const ServerConfig& config, ShutdownSignals& signals) {
  const Logger log(config.log);
  const GrpcLogLines grpc_log(log);
  const absl::StatusOr<FoundDevices> found = FindDevices(config.device);
  if (!found.ok()) return Fail(kExitFailed, found.status());
  for (const std::string& note : found->notes) log.Info("device", {{"note", note}});

  std::vector<std::string> names;
  for (const DeviceFacts& device : found->devices) names.push_back(device.name);
  Metrics metrics({.device_names = std::move(names),
                   .close_reasons = BatchCloseReasonNames(),
                   .build = ThisBuild(),
                   .recording = config.record_metrics});
  const int exit_code = RunOn(found->devices, config, signals, metrics, log);
  EndGpuReaders(metrics, log, exit_code);
  return exit_code;
}

/// The environment's list, or 0, 1, ...
std::vector<std::string> VisibleDevices(int count) {
  std::vector<std::string> devices;
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    devices = absl::StrSplit(visible, ',', absl::SkipWhitespace());
  }
  devices.resize(std::min(devices.size(), static_cast<size_t>(count)));
  for (int i = 0; static_cast<int>(devices.size()) < count; ++i) devices.push_back(absl::StrCat(i));
  return devices;
}

/// One process, or the group of them that --processes asks for.
int RunProcesses(const ServerConfig& config, ShutdownSignals& signals,
                 std::vector<std::string> arguments) {
  const int gpus =
      config.processes == 1 || config.device == DeviceSelection::kCpu ? 0 : CountCudaDevices();
  const int processes = config.processes > 0 ? config.processes : std::max(1, gpus);
  if (processes == 1) return Run(config, signals);
  if (gpus > 0 && processes > gpus) {
    return Fail(kExitUsage,
                absl::InvalidArgumentError(absl::StrCat("--processes: must be in [0, ", gpus,
                                                        "], the number of GPUs, got ", processes)));
  }
  ProcessGroupOptions group;
  group.arguments = std::move(arguments);
  group.listen = config.grpc.listen;
  group.metrics_listen = config.metrics_listen;
  group.processes = processes;
  if (gpus > 0) group.devices = VisibleDevices(gpus);
  group.on_ready = [&config](const GroupAddresses& addresses) {
    std::printf("normd ready grpc=%s metrics=%s\n", addresses.grpc.c_str(),
                absl::StrJoin(addresses.metrics, ",").c_str());
    std::fflush(stdout);
    return config.port_file.empty()
               ? absl::OkStatus()
               : WritePortFile(config.port_file, addresses.grpc, addresses.metrics);
  };
  const Logger log(config.log);
  const absl::StatusOr<int> exit_code = RunProcessGroup(group, signals, log);
  return exit_code.ok() ? *exit_code : Fail(kExitFailed, exit_code.status());
}

int Main(int argc, char** argv) {
  KeepFreedMemory();
  LeaveMutexesUnwatched();
  ShutdownSignals signals;
  const std::vector<absl::string_view> arguments(argv + 1, argv + argc);
  const absl::StatusOr<CommandLineAction> action = SetFlags(arguments);
  if (!action.ok()) return Fail(kExitUsage, action.status());
  switch (*action) {
    case CommandLineAction::kShowHelp:
      std::fputs(ServerHelp().c_str(), stdout);
      return 0;
    case CommandLineAction::kShowVersion:
      std::printf("normd %s (%s)\n", NORM_VERSION, NORM_COMPILER);
      return 0;
    case CommandLineAction::kRun:
      break;
  }
  const absl::StatusOr<ServerConfig> config = ReadServerConfig();
  if (!config.ok()) return Fail(kExitUsage, config.status());
  return RunProcesses(*config, signals, std::vector<std::string>(argv, argv + argc));
}

}  // namespace
}  // namespace norm::server

int main(int argc, char** argv) { return norm::server::Main(argc, argv); }
