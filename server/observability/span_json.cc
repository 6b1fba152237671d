#include "server/observability/span_json.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/observability/json_text.h"

namespace norm::server {
namespace {

constexpr int kInternal = 1;  // Span.SpanKind
constexpr int kServer = 2;
constexpr int kError = 2;  // Status.StatusCode

// Span.flags: those of traceparent, whether it is known where the parent is, and whether it is in
// another process.
constexpr int kSampled = 0x1;
constexpr int kHasIsRemote = 0x100;
constexpr int kIsRemote = 0x200;

constexpr size_t kMaxText = 1024;  // of what clients say

/// Attributes of one span, event or resource.
class Attributes {
 public:
  explicit Attributes(std::string* out) : out_(out) { out_->append("\"attributes\":["); }
  ~Attributes() { out_->append("]"); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  void Text(const char* key, absl::string_view value) {
    Begin(key);
    out_->append("\"stringValue\":");
    AppendJsonString(value.substr(0, kMaxText), out_);
    out_->append("}}");
  }
  void Integer(const char* key, int64_t value) {
    Begin(key);
    absl::StrAppend(out_, "\"intValue\":\"", value, "\"}}");
  }
  void Microseconds(const char* key, absl::Duration value) {
    Begin(key);
    absl::StrAppend(out_, "\"doubleValue\":", absl::ToDoubleMicroseconds(value), "}}");
  }

 private:
  void Begin(const char* key) {
    absl::StrAppend(out_, first_ ? "" : ",", "{\"key\":\"", key, "\",\"value\":{");
    first_ = false;
  }

  std::string* out_;
  bool first_ = true;
};

/// "host:port" with the port apart; "[::1]:1" is an address of IPv6.
struct HostPort {
  absl::string_view host;
  int64_t port = 0;  // 0: none
};
HostPort SplitHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  int64_t port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port)) {
    return {text};
  }
  absl::string_view host = text.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]"))
    host = host.substr(1, host.size() - 2);
  return {host, port};
}

void AppendSpanHead(const SpanRecord& record, uint64_t span_id, uint64_t parent_id, int flags,
                    absl::string_view name, int kind, absl::Time start, absl::Time end,
                    std::string* out) {
  absl::StrAppend(out, "{\"traceId\":\"", tracing::TraceIdText(record.context), "\",\"spanId\":\"",
                  tracing::SpanIdText(span_id), "\",");
  if (!record.context.state.empty()) {
    out->append("\"traceState\":");
    AppendJsonString(record.context.state, out);
    out->append(",");
  }
  if (parent_id != 0) {
    absl::StrAppend(out, "\"parentSpanId\":\"", tracing::SpanIdText(parent_id), "\",");
  }
  absl::StrAppend(out, "\"flags\":", flags, ",\"name\":");
  AppendJsonString(name, out);
  absl::StrAppend(out, ",\"kind\":", kind, ",\"startTimeUnixNano\":\"", absl::ToUnixNanos(start),
                  "\",\"endTimeUnixNano\":\"", absl::ToUnixNanos(end), "\"");
}

void AddAddress(const char* address_key, const char* port_key, absl::string_view text,
                Attributes& attributes) {
  const HostPort at = SplitHostPort(text);
  attributes.Text(address_key, at.host);
  if (at.port != 0) attributes.Integer(port_key, at.port);
}

void AddCall(const SpanRecord& record, Attributes& attributes) {
  attributes.Text("rpc.system.name", "grpc");
  attributes.Text("rpc.method", record.method);
  if (!record.authority.empty()) {
    AddAddress("server.address", "server.port", record.authority, attributes);
  }
  absl::string_view peer = record.peer;
  for (const absl::string_view scheme : {"ipv4:", "ipv6:"}) {
    if (!absl::ConsumePrefix(&peer, scheme)) continue;
    AddAddress("client.address", "client.port", peer, attributes);
    return;
  }
  if (!peer.empty()) attributes.Text("client.address", peer);
}

void AddRequest(const SpanRecord& record, Attributes& attributes) {
  if (!record.is_call) {
    attributes.Integer("normd.stream_request", static_cast<int64_t>(record.stream_request));
  }
  if (record.op.has_value()) {
    attributes.Text("normd.op", OpName(*record.op));
    attributes.Text("normd.direction", DirectionName(record.direction));
    attributes.Text("normd.dtype", DTypeName(record.dtype));
    attributes.Integer("normd.rows", record.rows);
    attributes.Integer("normd.hidden_size", record.hidden_size);
    attributes.Integer("normd.bytes_in", record.bytes_in);
    attributes.Integer("normd.bytes_out", record.bytes_out);
  }
  if (!record.device.empty()) {
    attributes.Text("normd.device", record.device);
    attributes.Integer("normd.batch_requests", record.batch_requests);
    attributes.Integer("normd.batch_rows", record.batch_rows);
    attributes.Integer("normd.batch_segments", record.batch_segments);
  }
}

void AppendLaunches(const SpanRecord& record, std::string* out) {
  if (record.launches.empty()) return;
  out->append(",\"events\":[");
  bool first = true;
  for (const SpanRecord::Launch& launch : record.launches) {
    absl::StrAppend(out, first ? "" : ",", "{\"timeUnixNano\":\"",
                    absl::ToUnixNanos(std::min(launch.end, record.end)), "\",\"name\":\"launch\",");
    first = false;
    {
      Attributes attributes(out);
      attributes.Integer("normd.first_row", launch.first_row);
      attributes.Integer("normd.rows", launch.rows);
      attributes.Microseconds("normd.queue_us", launch.queue);
      attributes.Microseconds("normd.copy_in_us", launch.copy_in);
      attributes.Microseconds("normd.kernel_us", launch.kernel);
      attributes.Microseconds("normd.copy_out_us", launch.copy_out);
    }
    out->append("}");
  }
  absl::StrAppend(out, "],\"droppedEventsCount\":", record.dropped_launches);
}

void AppendOwnSpan(const SpanRecord& record, absl::Time end, std::string* out) {
  const int remote = record.parent_id == 0 ? 0 : kHasIsRemote | (record.is_call ? kIsRemote : 0);
  AppendSpanHead(record, record.context.span_id, record.parent_id, kSampled | remote,
                 record.is_call ? absl::string_view(record.method) : "stream request",
                 record.is_call ? kServer : kInternal, record.start, end, out);
  const std::string code = absl::StatusCodeToString(record.status.code());
  out->append(",");
  {
    Attributes attributes(out);
    if (record.is_call) AddCall(record, attributes);
    attributes.Text("rpc.response.status_code", code);
    if (!record.status.ok()) attributes.Text("error.type", code);
    attributes.Text("normd.request_id", record.request_id);
    AddRequest(record, attributes);
  }
  AppendLaunches(record, out);
  if (!record.status.ok()) {
    absl::StrAppend(out, ",\"status\":{\"code\":", kError, ",\"message\":");
    AppendJsonString(record.status.message().substr(0, kMaxText), out);
    out->append("}");
  }
  out->append("}");
}

}  // namespace

std::string SpanLineBegin(const SpanResource& resource) {
  std::string begin = "{\"resourceSpans\":[{\"resource\":{";
  {
    Attributes attributes(&begin);
    attributes.Text("service.name", "normd");
    attributes.Text("service.version", resource.version);
    attributes.Text("service.instance.id", resource.instance_id);
    attributes.Text("host.name", resource.host_name);
    attributes.Integer("process.pid", resource.process_id);
  }
  begin += "},\"scopeSpans\":[{\"scope\":{\"name\":\"normd\",\"version\":";
  AppendJsonString(resource.version, &begin);
  begin += "},\"spans\":[";
  return begin;
}

void AppendSpanLine(absl::string_view begin, const SpanRecord& record, std::string* out) {
  // The wall clock may have been set back meanwhile.
  const absl::Time end = std::max(record.start, record.end);
  absl::StrAppend(out, begin);
  AppendOwnSpan(record, end, out);
  absl::Time at = record.start;
  for (size_t i = 0; i < record.stages.size(); ++i) {
    if (!record.stages[i].has_value()) continue;
    const absl::Time from = std::min(std::max(at, record.stages[i]->start), end);
    at = std::min(std::max(from, record.stages[i]->start + record.stages[i]->time), end);
    out->append(",");
    AppendSpanHead(record, tracing::NewId(), record.context.span_id, kSampled | kHasIsRemote,
                   StageName(static_cast<Stage>(i)), kInternal, from, at, out);
    out->append("}");
  }
  out->append("]}]}]}\n");
}

}  // namespace norm::server
