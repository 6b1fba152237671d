// What became of the requests of a load.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/normctl/latency_summary.h"
#include "norm/client/requests.h"

namespace norm::normctl {

/// Where a request's time went, from when it was sent. The stages add up to its latency, less the
/// send delay.
enum class LoadStage : uint8_t {
  kOutside,  // not in the server's total: client, network, gRPC on both sides, waiting to be read
  kDecode,   // these five as in norm.v1.Timing
  kQueue,
  kCopyIn,
  kKernel,
  kCopyOut,
  kOther,  // the server's total less its stages: hand-overs between threads, encoding
};
inline constexpr size_t kLoadStages = 7;
/// "outside", "decode", "queue", "copy_in", "kernel", "copy_out", "other".
const char* LoadStageName(LoadStage stage);

using StageTimes = std::array<float, kLoadStages>;  // microseconds
StageTimes ToStageTimes(const client::Timing& timing, std::chrono::nanoseconds since_sent);

/// One completed request.
struct LoadSample {
  std::chrono::nanoseconds latency{0};  // open loop: from when it was meant to leave
  uint32_t case_index = 0;
  float launches = 0;  // its part of the launch that served it: 1 / requests in the launch
  bool retried = false;
  StageTimes stages = {};
};

/// Of one case of one phase.
struct CaseCounts {
  int64_t completed = 0;
  std::map<absl::StatusCode, int64_t> errors;
  int64_t bytes_sent = 0;      // of the completed requests
  int64_t bytes_received = 0;  // likewise
  int64_t retried = 0;         // completed by another try than the first
  int64_t retries = 0;         // tries that these took beyond the first

  void Add(const CaseCounts& other);
  int64_t failed() const;
};

/// One phase or several, added up.
struct LoadSamples {
  std::vector<LoadSample> samples;
  std::vector<std::chrono::nanoseconds> send_delays;  // open loop: of failed requests too
  std::vector<CaseCounts> cases;
  absl::Status first_error;  // OK without errors
  std::optional<int64_t> not_sent;
  double measured_seconds = 0;

  void Add(LoadSamples other);
  double requests_per_second() const;  // completed
};

/// Figures of all requests or of one case.
struct LoadFigures {
  CaseCounts counts;
  std::optional<LatencySummary> latency;          // of the completed requests
  std::optional<LatencySummary> retried_latency;  // of those among them that were retried
  // By LoadStage; of requests that were computed.
  std::optional<std::array<LatencySummary, kLoadStages>> stages;
  double launches_per_request = 0;  // where there are stages

  int64_t requests() const { return counts.completed + counts.failed(); }
};

/// Requests are counted when they start within the window that follows the warm-up; those of an
/// open loop start when they are meant to, whether or not they could be sent then.
struct LoadOutcome {
  LoadFigures all;
  std::vector<LoadFigures> cases;
  absl::Status first_error;  // of one of the workers; OK without errors
  // Open loop: meant to leave within the window, at whose end no worker was free yet.
  std::optional<int64_t> not_sent;
  std::optional<LatencySummary> send_delay;  // open loop: of all requests, from intended to sent
  // Open loop: the window, and what its last answer took beyond it. Closed loop: what the requests
  // in flight took from the first counted one to the last, on average; pairs: the requests alone.
  double measured_seconds = 0;

  double requests_per_second() const;
  double gigabytes_per_second() const;  // both ways
};

/// Whether the requests had stages: an echo has none.
enum class SampleStages { kPresent, kAbsent };
LoadOutcome Summarize(LoadSamples samples, SampleStages stages);

}  // namespace norm::normctl
