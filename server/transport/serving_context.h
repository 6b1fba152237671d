// What the calls of the data path share.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "server/observability/logging.h"
#include "server/observability/metrics.h"
#include "server/scheduler/clock.h"
#include "server/scheduler/scheduler.h"
#include "server/transport/call.h"
#include "server/transport/request_decoder.h"
#include "server/transport/unsent_responses.h"

namespace norm::server {

struct StreamLimits {
  /// Requests of one stream that may be unanswered; reading pauses there.
  int64_t max_requests = 0;
  /// Finished responses that wait for a slow reader; reading pauses there. The memory of one stream
  /// is bounded by this plus max_requests responses.
  int64_t max_unsent_bytes = 0;
  /// Chunked requests in flight; more are refused.
  int64_t max_uploads = 0;
  /// Rows of one chunked request that wait for their job, where reading pauses (twice that for all
  /// of a stream), and inputs and outputs of its jobs until their results are written.
  int64_t window_bytes = 0;
  /// How long a chunked request may wait for rows.
  absl::Duration stall_timeout;
};

class FailureLog;
class SpanLog;

/// Borrowed by every call; outlives all of them.
struct ServingContext {
  Scheduler& scheduler;
  Metrics& metrics;
  const Clock& clock;
  LiveCalls& calls;
  UnsentResponses& unsent;
  DecodeLimits decode;
  StreamLimits stream;
  FailureLog& failures;
  SpanLog* spans = nullptr;  // null: no spans are recorded
};

}  // namespace norm::server
