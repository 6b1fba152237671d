// Where spans go: a file in the form of OpenTelemetry's file exporter, one call a line.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tracing/trace_context.h"
#include "server/observability/appended_file.h"
#include "server/observability/log_limiter.h"
#include "server/observability/logging.h"
#include "server/observability/metrics.h"
#include "server/observability/span_record.h"

namespace norm::server {

struct SpanLogOptions {
  std::string path;         // "-" is stdout; empty: no spans are recorded
  double sample_ratio = 0;  // of traces that begin here, in [0, 1]
  std::string version;      // of this program
};

/// A bounded queue before a thread that encodes and writes: who records never waits for the file.
/// What finds the queue full, or cannot be written, is dropped and counted (Metrics::RecordSpans).
///
/// Lines:    TracesData in OTLP's JSON encoding, each a call or a request of a stream with its stages
///           (span_json.h).
/// Files:    as AppendedFile has them, renamed or truncated by who rotates them.
/// Threads:  safe.
class SpanLog {
 public:
  /// Borrows metrics and log. Errors: those of the file.
  static absl::StatusOr<std::unique_ptr<SpanLog>> Open(const SpanLogOptions& options,
                                                       Metrics& metrics, const Logger& log);
  /// Writes what is queued; a file that takes nothing for two seconds costs the rest.
  ~SpanLog();
  SpanLog(const SpanLog&) = delete;
  SpanLog& operator=(const SpanLog&) = delete;

  /// Whether a call without a parent may leave spans.
  bool begins_traces() const { return threshold_ <= kRandomBits; }
  /// Whether a call leaves spans: as its caller has decided, which the sampled flag tells; of traces
  /// that begin with it, `sample_ratio`, by their ids.
  bool Samples(const std::optional<tracing::TraceContext>& parent,
               const tracing::TraceContext& trace) const;

  void Record(std::unique_ptr<SpanRecord> record) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Records = std::vector<std::unique_ptr<SpanRecord>>;
  /// Those bits of a trace id that are random by the Recommendation's level 2, and that OpenTelemetry
  /// samples by.
  static constexpr uint64_t kRandomBits = (uint64_t{1} << 56) - 1;

  SpanLog(const SpanLogOptions& options, AppendedFile file, Metrics& metrics, const Logger& log);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Write(const Records& records);
  bool MayWait() const ABSL_LOCKS_EXCLUDED(mutex_);

  const uint64_t threshold_;  // least kRandomBits of a trace id that is sampled
  const std::string line_begin_;
  AppendedFile file_;  // of the thread
  std::string lines_;  // of the thread
  Metrics& metrics_;
  const Logger& log_;
  LogLimiter limiter_{absl::Minutes(1)};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Records queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time stop_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::thread thread_;
};

}  // namespace norm::server
