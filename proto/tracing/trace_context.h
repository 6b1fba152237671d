// W3C trace context in gRPC metadata (https://www.w3.org/TR/trace-context/), read and written the same
// way at both ends of a call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace norm::tracing {

/// Metadata keys.
inline constexpr char kTraceparent[] = "traceparent";
inline constexpr char kTracestate[] = "tracestate";

/// A span and the trace that it belongs to. None of the ids is all zeros.
struct TraceContext {
  uint64_t trace_id_high = 0;
  uint64_t trace_id_low = 0;
  uint64_t span_id = 0;
  bool sampled = false;
  std::string state;  // tracestate; may be empty
};

/// The span that a traceparent names, without tracestate. Nothing when the Recommendation has it
/// ignored: another form than that of version 00, or of what later versions begin with; upper-case
/// digits; an id of zeros. Blanks around it are no part of it.
std::optional<TraceContext> ParseTraceparent(absl::string_view text);
/// In version 00.
std::string FormatTraceparent(const TraceContext& context);

/// The span that a caller names in its metadata, where there may be several values of a key: of
/// traceparent then none counts, those of tracestate are one list.
std::optional<TraceContext> ParseTraceContext(absl::Span<const absl::string_view> traceparents,
                                              absl::Span<const absl::string_view> tracestates);

/// The list as it came, without blanks around it; empty when a member of it is malformed or there are more than 32. At
/// most 512 characters of it: then whole members go, those of more than 128 characters first and
/// then the last ones.
std::string CombineTracestate(absl::Span<const absl::string_view> values);

/// Random, not 0. Threads: any.
uint64_t NewId();
/// A span without a parent, not sampled.
TraceContext NewTrace();

/// 16 and 32 lower-case hexadecimal digits.
std::string SpanIdText(uint64_t span_id);
std::string TraceIdText(const TraceContext& context);

}  // namespace norm::tracing
