// What is known of a finished call: the server's part of a trace.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "norm/kernels/dtype.h"
#include "norm/kernels/op_types.h"
#include "proto/tracing/trace_context.h"
#include "server/observability/metrics.h"

namespace norm::server {

/// A call, or one request of a stream, with where its time went. Times are of the wall clock.
struct SpanRecord {
  /// One launch of a request in rows.
  struct Launch {
    absl::Time end;
    int64_t first_row = 0;
    int64_t rows = 0;
    absl::Duration queue;
    absl::Duration copy_in;
    absl::Duration kernel;
    absl::Duration copy_out;
  };
  /// As many events as OpenTelemetry's kits keep of a span; more are counted.
  static constexpr size_t kMaxLaunches = 128;

  struct StageTime {
    absl::Time start;
    absl::Duration time;
  };

  tracing::TraceContext context;  // of this span
  uint64_t parent_id = 0;         // 0: the trace begins with it
  bool is_call = true;            // else a request of the stream that parent_id is
  std::string method;             // "package.Service/Method"
  std::string request_id;
  std::string peer;  // as gRPC names it: "ipv4:127.0.0.1:41234"; empty for requests of a stream
  std::string authority;        // host:port that the client called; empty likewise
  uint64_t stream_request = 0;  // id of the request, where it is one of a stream
  absl::Time start;
  absl::Time end;
  absl::Status status;

  // Of the request; absent where none was read.
  Direction direction = Direction::kForward;
  std::optional<Op> op;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t hidden_size = 0;
  int64_t bytes_in = 0;  // of tensors
  int64_t bytes_out = 0;

  // Of its launch.
  std::string device;  // empty: none
  int64_t batch_requests = 0;
  int64_t batch_rows = 0;
  int64_t batch_segments = 0;

  std::array<std::optional<StageTime>, kStageCount> stages;
  std::vector<Launch> launches;  // of a request in rows
  int64_t dropped_launches = 0;

  void SetStage(Stage stage, absl::Time from, absl::Duration time) {
    stages[static_cast<size_t>(stage)] = StageTime{from, time};
  }
};

}  // namespace norm::server
