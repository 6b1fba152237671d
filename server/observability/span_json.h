// Spans in the OTLP JSON encoding (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding),
// attributes by OpenTelemetry's semantic conventions for RPC and gRPC.
#pragma once

#include <string>

#include "server/observability/span_record.h"

namespace norm::server {

/// What every line says of the process.
struct SpanResource {
  std::string version;
  std::string instance_id;
  std::string host_name;
  int64_t process_id = 0;
};

/// TracesData with one resource and one scope, up to its first span.
std::string SpanLineBegin(const SpanResource& resource);

/// Appends a line: `begin`, the record's span and one for each of its stages, as children, which
/// get new ids. Stages are cut to follow each other within their parent: their times come from
/// several clocks, and those of a launch in slices overlap.
void AppendSpanLine(absl::string_view begin, const SpanRecord& record, std::string* out);

}  // namespace norm::server
