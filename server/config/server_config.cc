#include "server/config/server_config.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "server/config/byte_size.h"
#include "server/config/command_line.h"
#include "server/device/usable_cores.h"
#include "server/transport/listen_address.h"

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

/// A connection that sends or takes large messages keeps a thread busy with their bytes: beside four
/// with messages of 64 MiB, small calls of another one had a p99 of 54 ms with four threads, of 0.9
/// and of 8.6 ms (two runs) with eight and of 0.8 ms alone (16 cores).
int GrpcThreads() {
  const int cores = norm::server::UsableCores();
  return std::min(cores, std::clamp(cores / 2, 4, 8));
}

}  // namespace

using norm::server::ByteSize;

ABSL_FLAG(std::string, listen, "127.0.0.1:8470",
          "Address of the gRPC server, host:port; port 0 takes any free one.");
ABSL_FLAG(
    std::string, metrics_listen, "127.0.0.1:8471",
    "Address of /metrics, the status page and the probes, host:port, of IPv4; port 0 takes any "
    "free one.");
ABSL_FLAG(
    std::string, tls_cert, "",
    "PEM file with the server's certificate and those that lead to its root: the gRPC port then "
    "speaks TLS 1.2 or later alone. Read again when it changes, as all of these files.");
ABSL_FLAG(std::string, tls_key, "", "PEM file with the key of --tls_cert.");
ABSL_FLAG(
    std::string, tls_client_ca, "",
    "PEM file with certificates of authorities: every client must show a certificate of one.");
ABSL_FLAG(std::string, data_tokens, "",
          "File of bearer tokens, one a line, that give access to NormalizationService.");
ABSL_FLAG(std::string, admin_tokens, "",
          "File of bearer tokens that give access to every other service but grpc.health.v1.");
ABSL_FLAG(std::string, data_clients, "",
          "File of names, one a line: clients whose certificate has one of them (common name or "
          "subject alternative name) have access to NormalizationService.");
ABSL_FLAG(std::string, admin_clients, "", "The same for every other service but grpc.health.v1.");
ABSL_FLAG(
    bool, insecure, false,
    "Listen without TLS although other machines can reach the address: whoever sees the traffic "
    "sees tensors and tokens.");
ABSL_FLAG(
    bool, record_metrics, true,
    "Count and time what requests do. Without it those metrics and GetStatistics stand still, "
    "to see what recording costs.");
ABSL_FLAG(std::string, port_file, "",
          "File to write once the server is ready, for scripts: lines grpc=host:port and "
          "metrics=host:port.");
ABSL_FLAG(std::string, device, "auto",
          "Where kernels run: auto (CUDA when a device is there, else the CPU), cuda or cpu.");
ABSL_FLAG(int, processes, 1,
          "Server processes that share the port, with the GPUs dealt out to them; 0: one for each "
          "GPU. An error that ends all CUDA work of a process then costs only its GPUs, and the "
          "process is started anew. Process i has the metrics port + i; every limit is one "
          "process's.");
ABSL_FLAG(bool, share_port, false,
          "Listen with SO_REUSEPORT, so that other processes may share the port: connections are "
          "spread over them. --processes sets it.");
ABSL_FLAG(int, cpu_threads, norm::server::UsableCores(), "Threads of the CPU backend.");
ABSL_FLAG(int, grpc_threads, GrpcThreads(),
          "Threads of the gRPC data path, one completion queue each.");
ABSL_FLAG(int, slots, 3, "Batches that may be in flight on one device at once.");
ABSL_FLAG(ByteSize, max_message_bytes, ByteSize{512 * kMiB},
          "Largest request message, and largest total of the output tensors of one request.");
ABSL_FLAG(ByteSize, receive_quota_bytes, ByteSize{4 * kGiB},
          "Memory that gRPC may hold for all connections together; calls beyond it are ended.");
ABSL_FLAG(
    absl::optional<ByteSize>, receive_memory_bytes, absl::nullopt,
    "Of it, page-locked memory that large messages are received in where there is a GPU, which "
    "copies tensors from there; what finds no room is copied once more. 0: none. A quarter of "
    "receive_quota_bytes when not given.");
ABSL_FLAG(int, max_concurrent_streams, 256, "Calls in flight on one connection.");
ABSL_FLAG(int64_t, max_stream_requests, 128,
          "Unanswered requests of one NormalizeStream; reading pauses there.");
ABSL_FLAG(
    ByteSize, max_stream_unsent_bytes, ByteSize{64 * kMiB},
    "Finished responses one NormalizeStream may hold for a slow reader; reading pauses there.");
ABSL_FLAG(int64_t, max_stream_uploads, 64,
          "Chunked requests one NormalizeStream may have in flight; more are refused.");
ABSL_FLAG(ByteSize, stream_window_bytes, ByteSize{64 * kMiB},
          "Of one chunked request: rows that wait for a launch, where reading pauses, and inputs "
          "and outputs of launches until their results are sent.");
ABSL_FLAG(absl::Duration, stream_stall_timeout, absl::Seconds(30),
          "How long a chunked request may wait for rows.");
ABSL_FLAG(ByteSize, max_unsent_bytes, ByteSize{kGiB},
          "Responses that wait for their readers, all connections together; beyond it, connections "
          "that have their equal part of it get no more requests in.");
ABSL_FLAG(absl::Duration, write_timeout, absl::Minutes(1),
          "How long a client may take to read one response; a slower one's call is ended.");
ABSL_FLAG(int64_t, max_queue_requests, 4096,
          "Requests waiting for a slot. When it is full, a connection may have its equal part.");
ABSL_FLAG(ByteSize, max_in_flight_bytes, ByteSize{8 * kGiB},
          "Input and output bytes of all accepted requests together, shared like "
          "max_queue_requests.");
ABSL_FLAG(absl::Duration, max_queue_delay, absl::ZeroDuration(),
          "How long a request may wait for others to share its launch although a slot is free.");
ABSL_FLAG(int, express_slots, 1,
          "Of --slots, those that launches of more than 1 MiB leave to smaller ones.");
ABSL_FLAG(int, bulk_share_percent, 10,
          "What bulk requests get of the work while interactive ones wait.");
ABSL_FLAG(int64_t, max_batch_rows, 65536, "Rows of requests that are merged into one launch.");
ABSL_FLAG(ByteSize, max_batch_bytes, ByteSize{64 * kMiB},
          "Bytes of requests that are merged into one launch.");
ABSL_FLAG(ByteSize, pinned_pool_bytes, ByteSize{4 * kGiB},
          "Host staging memory of one device (pinned for a GPU); one batch may take half of it.");
ABSL_FLAG(
    ByteSize, prewarm_bytes, ByteSize{64 * kMiB},
    "Requests of up to so many bytes of inputs, and of outputs, find their memory on a GPU and "
    "beside it made before the server is ready, as far as half of each pool goes; making it "
    "later stops all others meanwhile.");
ABSL_FLAG(absl::optional<ByteSize>, device_pool_bytes, absl::nullopt,
          "Pooled memory on one GPU; three quarters of what is free at start when not given.");
ABSL_FLAG(absl::Duration, min_client_ping_interval, absl::Seconds(5),
          "How often a client may send keepalive pings, also without calls; faster ones are "
          "disconnected.");
ABSL_FLAG(absl::Duration, keepalive_time, absl::Seconds(60),
          "How long a connection may be silent before the server pings it.");
ABSL_FLAG(absl::Duration, keepalive_timeout, absl::Seconds(20),
          "How long the answer to a ping may take before the connection is dropped.");
ABSL_FLAG(absl::Duration, drain_delay, absl::ZeroDuration(),
          "After SIGTERM: how long to go on serving while health says NOT_SERVING, so that load "
          "balancers notice.");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(25),
          "After drain_delay: how long accepted requests may take to finish.");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning or error.");
ABSL_FLAG(std::string, log_format, "text", "text or json.");
ABSL_FLAG(
    std::string, trace_log, "",
    "File for spans of calls, in OTLP's JSON encoding, a call a line; - is stdout. Without it "
    "none are recorded.");
ABSL_FLAG(
    double, trace_sample_ratio, 0,
    "Share of the calls without a traceparent that leave spans, from 0 to 1. Those with one do "
    "as its sampled flag says.");

namespace norm::server {
namespace {

/// Checks one flag after another and keeps the first violation.
class Checker {
 public:
  void Fail(absl::string_view flag, absl::string_view rule, absl::string_view value) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", rule, ", got ", value));
  }

  int64_t Range(absl::string_view flag, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
      Fail(flag, absl::StrCat("must be in [", low, ", ", high, "]"), absl::StrCat(value));
    }
    return value;
  }

  int64_t Size(absl::string_view flag, ByteSize size, int64_t low, int64_t high) {
    if (size.bytes < low || size.bytes > high) {
      Fail(flag,
           absl::StrCat("must be in [", AbslUnparseFlag(ByteSize{low}), ", ",
                        AbslUnparseFlag(ByteSize{high}), "]"),
           AbslUnparseFlag(size));
    }
    return size.bytes;
  }

  absl::Duration Time(absl::string_view flag, absl::Duration value, absl::Duration low,
                      absl::Duration high) {
    if (value < low || value > high) {
      Fail(flag,
           absl::StrCat("must be in [", absl::FormatDuration(low), ", ", absl::FormatDuration(high),
                        "]"),
           absl::FormatDuration(value));
    }
    return value;
  }

  std::string Address(absl::string_view flag, const std::string& value) {
    const size_t colon = value.rfind(':');
    int port = -1;
    if (colon == std::string::npos || colon == 0 ||
        value.find_first_of(" \t") != std::string::npos ||
        !absl::SimpleAtoi(absl::string_view(value).substr(colon + 1), &port) || port < 0 ||
        port > 65535) {
      Fail(flag, "must be host:port with a port in [0, 65535]", absl::StrCat("'", value, "'"));
    }
    return value;
  }

  template <typename Value, size_t kCount>
  Value OneOf(absl::string_view flag, const std::string& value,
              const std::pair<const char*, Value> (&choices)[kCount]) {
    std::string names;
    for (const auto& [name, choice] : choices) {
      if (value == name) return choice;
      absl::StrAppend(&names, names.empty() ? "" : ", ", name);
    }
    Fail(flag, absl::StrCat("must be one of ", names), absl::StrCat("'", value, "'"));
    return choices[0].second;
  }

  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

/// Files and whether each can do what it is for; and that nobody is served unencrypted by accident.
SecurityOptions ReadSecurity(const std::string& listen, Checker& check) {
  SecurityOptions security;
  security.tls_cert = absl::GetFlag(FLAGS_tls_cert);
  security.tls_key = absl::GetFlag(FLAGS_tls_key);
  security.tls_client_ca = absl::GetFlag(FLAGS_tls_client_ca);
  security.data_tokens = absl::GetFlag(FLAGS_data_tokens);
  security.admin_tokens = absl::GetFlag(FLAGS_admin_tokens);
  security.data_clients = absl::GetFlag(FLAGS_data_clients);
  security.admin_clients = absl::GetFlag(FLAGS_admin_clients);
  const auto needs = [&check](absl::string_view flag, const std::string& value,
                              absl::string_view other, const std::string& other_value) {
    if (!value.empty() && other_value.empty()) {
      check.Fail(flag, absl::StrCat("needs --", other), absl::StrCat("'", value, "' alone"));
    }
  };
  needs("tls_cert", security.tls_cert, "tls_key", security.tls_key);
  needs("tls_key", security.tls_key, "tls_cert", security.tls_cert);
  needs("tls_client_ca", security.tls_client_ca, "tls_cert", security.tls_cert);
  needs("data_clients", security.data_clients, "tls_client_ca", security.tls_client_ca);
  needs("admin_clients", security.admin_clients, "tls_client_ca", security.tls_client_ca);

  const bool insecure = absl::GetFlag(FLAGS_insecure);
  if (insecure && security.tls()) {
    check.Fail("insecure", "cannot be said together with --tls_cert", "both");
  }
  if (!insecure && !security.tls() && ReachesBeyondLoopback(listen)) {
    check.Fail(
        "listen",
        "must be a loopback address unless --tls_cert and --tls_key are given, or --insecure "
        "for plaintext",
        absl::StrCat("'", listen, "'"));
  }
  return security;
}

constexpr int64_t kMaxCount = 1'000'000;
constexpr int64_t kMaxProcesses = 64;
constexpr int64_t kMaxPool = int64_t{1} << 46;
/// protobuf's and gRPC's limit is 2 GiB - 1; what is not tensor bytes needs some room.
constexpr int64_t kMaxMessage = (int64_t{2} << 30) - 2 * kMiB;

}  // namespace

absl::StatusOr<ServerConfig> ReadServerConfig() {
  Checker check;
  ServerConfig config;
  GrpcServerOptions& grpc = config.grpc;
  grpc.listen = check.Address("listen", absl::GetFlag(FLAGS_listen));
  grpc.security = ReadSecurity(grpc.listen, check);
  config.metrics_listen = check.Address("metrics_listen", absl::GetFlag(FLAGS_metrics_listen));
  // The HTTP library takes lists for itself, and is built without IPv6.
  if (config.metrics_listen.find_first_of(",[") != std::string::npos) {
    check.Fail("metrics_listen", "must be one host:port, of IPv4", config.metrics_listen);
  }
  config.record_metrics = absl::GetFlag(FLAGS_record_metrics);
  config.port_file = absl::GetFlag(FLAGS_port_file);
  config.processes =
      static_cast<int>(check.Range("processes", absl::GetFlag(FLAGS_processes), 0, kMaxProcesses));
  grpc.share_port = absl::GetFlag(FLAGS_share_port);

  constexpr std::pair<const char*, DeviceSelection> kDevices[] = {{"auto", DeviceSelection::kAuto},
                                                                  {"cuda", DeviceSelection::kCuda},
                                                                  {"cpu", DeviceSelection::kCpu}};
  config.device = check.OneOf("device", absl::GetFlag(FLAGS_device), kDevices);
  DeviceOptions& device = config.device_options;
  device.cpu_threads =
      static_cast<int>(check.Range("cpu_threads", absl::GetFlag(FLAGS_cpu_threads), 1, 1024));
  device.cpu_slots = device.cuda_slots =
      static_cast<int>(check.Range("slots", absl::GetFlag(FLAGS_slots), 1, 64));
  device.cpu_memory_bytes = device.pinned_memory_bytes =
      check.Size("pinned_pool_bytes", absl::GetFlag(FLAGS_pinned_pool_bytes), kMiB, kMaxPool);
  device.prewarm_bytes =
      check.Size("prewarm_bytes", absl::GetFlag(FLAGS_prewarm_bytes), 0, kMaxPool);
  if (const auto size = absl::GetFlag(FLAGS_device_pool_bytes); size.has_value()) {
    device.device_memory_bytes = check.Size("device_pool_bytes", *size, kMiB, kMaxPool);
  }

  grpc.threads =
      static_cast<int>(check.Range("grpc_threads", absl::GetFlag(FLAGS_grpc_threads), 1, 64));
  grpc.max_message_bytes =
      check.Size("max_message_bytes", absl::GetFlag(FLAGS_max_message_bytes), 1024, kMaxMessage);
  grpc.receive_quota_bytes =
      check.Size("receive_quota_bytes", absl::GetFlag(FLAGS_receive_quota_bytes), kMiB, kMaxPool);
  if (grpc.receive_quota_bytes < grpc.max_message_bytes) {
    check.Fail("receive_quota_bytes",
               absl::StrCat("must be >= max_message_bytes ",
                            AbslUnparseFlag(ByteSize{grpc.max_message_bytes})),
               AbslUnparseFlag(ByteSize{grpc.receive_quota_bytes}));
  }
  config.receive_memory_bytes = check.Size(
      "receive_memory_bytes",
      absl::GetFlag(FLAGS_receive_memory_bytes).value_or(ByteSize{grpc.receive_quota_bytes / 4}), 0,
      grpc.receive_quota_bytes);
  grpc.max_concurrent_streams = static_cast<int>(check.Range(
      "max_concurrent_streams", absl::GetFlag(FLAGS_max_concurrent_streams), 1, kMaxCount));
  grpc.max_stream_requests =
      check.Range("max_stream_requests", absl::GetFlag(FLAGS_max_stream_requests), 1, kMaxCount);
  grpc.max_stream_unsent_bytes = check.Size(
      "max_stream_unsent_bytes", absl::GetFlag(FLAGS_max_stream_unsent_bytes), 1024, kMaxPool);
  grpc.max_unsent_bytes =
      check.Size("max_unsent_bytes", absl::GetFlag(FLAGS_max_unsent_bytes), 1024, kMaxPool);
  grpc.write_timeout = check.Time("write_timeout", absl::GetFlag(FLAGS_write_timeout),
                                  absl::Milliseconds(1), absl::Hours(24));
  grpc.max_stream_uploads =
      check.Range("max_stream_uploads", absl::GetFlag(FLAGS_max_stream_uploads), 1, kMaxCount);
  grpc.stream_window_bytes =
      check.Size("stream_window_bytes", absl::GetFlag(FLAGS_stream_window_bytes), 1024, kMaxPool);
  grpc.stream_stall_timeout =
      check.Time("stream_stall_timeout", absl::GetFlag(FLAGS_stream_stall_timeout),
                 absl::Milliseconds(1), absl::Hours(24));
  grpc.min_client_ping_interval =
      check.Time("min_client_ping_interval", absl::GetFlag(FLAGS_min_client_ping_interval),
                 absl::Milliseconds(1), absl::Hours(1));
  grpc.keepalive_time = check.Time("keepalive_time", absl::GetFlag(FLAGS_keepalive_time),
                                   absl::Seconds(1), absl::Hours(24));
  grpc.keepalive_timeout = check.Time("keepalive_timeout", absl::GetFlag(FLAGS_keepalive_timeout),
                                      absl::Seconds(1), absl::Hours(1));
  grpc.drain_delay = check.Time("drain_delay", absl::GetFlag(FLAGS_drain_delay),
                                absl::ZeroDuration(), absl::Hours(1));
  grpc.drain_timeout = check.Time("drain_timeout", absl::GetFlag(FLAGS_drain_timeout),
                                  absl::ZeroDuration(), absl::Hours(24));

  BatchingSchedulerOptions& scheduler = config.scheduler;
  scheduler.max_queue_requests =
      check.Range("max_queue_requests", absl::GetFlag(FLAGS_max_queue_requests), 1, kMaxCount);
  scheduler.max_in_flight_bytes =
      check.Size("max_in_flight_bytes", absl::GetFlag(FLAGS_max_in_flight_bytes), 1024, kMaxPool);
  if (scheduler.max_in_flight_bytes < grpc.max_message_bytes) {
    check.Fail("max_in_flight_bytes",
               absl::StrCat("must be >= max_message_bytes ",
                            AbslUnparseFlag(ByteSize{grpc.max_message_bytes})),
               AbslUnparseFlag(ByteSize{scheduler.max_in_flight_bytes}));
  }
  scheduler.max_queue_delay = check.Time("max_queue_delay", absl::GetFlag(FLAGS_max_queue_delay),
                                         absl::ZeroDuration(), absl::Seconds(10));
  scheduler.express_slots =
      static_cast<int>(check.Range("express_slots", absl::GetFlag(FLAGS_express_slots), 0, 63));
  scheduler.bulk_share_percent = static_cast<int>(
      check.Range("bulk_share_percent", absl::GetFlag(FLAGS_bulk_share_percent), 1, 99));
  scheduler.max_batch_rows = check.Range("max_batch_rows", absl::GetFlag(FLAGS_max_batch_rows), 1,
                                         std::numeric_limits<int64_t>::max());
  scheduler.max_batch_bytes =
      check.Size("max_batch_bytes", absl::GetFlag(FLAGS_max_batch_bytes), 1024, kMaxPool);

  constexpr std::pair<const char*, LogLevel> kLevels[] = {{"debug", LogLevel::kDebug},
                                                          {"info", LogLevel::kInfo},
                                                          {"warning", LogLevel::kWarning},
                                                          {"error", LogLevel::kError}};
  config.log.level = check.OneOf("log_level", absl::GetFlag(FLAGS_log_level), kLevels);
  constexpr std::pair<const char*, LogFormat> kFormats[] = {{"text", LogFormat::kText},
                                                            {"json", LogFormat::kJson}};
  config.log.format = check.OneOf("log_format", absl::GetFlag(FLAGS_log_format), kFormats);
  config.spans.path = absl::GetFlag(FLAGS_trace_log);
  if (config.spans.path == "-" && config.processes != 1) {
    check.Fail("trace_log", "must be a file where several --processes write", "'-'");
  }
  config.spans.sample_ratio = absl::GetFlag(FLAGS_trace_sample_ratio);
  if (!(config.spans.sample_ratio >= 0 && config.spans.sample_ratio <= 1)) {
    check.Fail("trace_sample_ratio", "must be in [0, 1]", absl::StrCat(config.spans.sample_ratio));
  }
  if (config.spans.sample_ratio > 0 && config.spans.path.empty()) {
    check.Fail("trace_sample_ratio", "needs --trace_log",
               absl::StrCat(config.spans.sample_ratio, " alone"));
  }
  if (!check.status().ok()) return check.status();
  return config;
}

std::string ServerHelp() {
  return absl::StrCat(
      "normd: normalizes tensors (RMSNorm, LayerNorm, BatchNorm; forward and backward) for other "
      "processes over gRPC.\n\nusage: normd [--flag=value ...]\n\n",
      FlagsHelp("server/config/server_config.cc"));
}

}  // namespace norm::server
