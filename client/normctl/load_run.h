// The load of `normctl bench`: requests, and in the same run their echoes.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/normctl/latency_summary.h"
#include "client/normctl/load_options.h"
#include "client/normctl/load_outcome.h"
#include "client/normctl/load_progress.h"

namespace norm::normctl {

/// Means over the requests that the server answered while the load ran, by its own counters.
struct ServerStages {
  std::optional<double> encode_us;
  std::optional<double> send_us;
};

/// What a flood did to the requests.
struct FloodResult {
  LoadOutcome alone;  // the requests before it came
  LoadOutcome flood;  // its own
};

/// A part of the requests and the echoes right before or after them.
struct EchoRound {
  double requests_per_second = 0;
  double echoes_per_second = 0;

  double ratio() const { return requests_per_second / echoes_per_second; }
};

struct LoadResult {
  LoadOutcome load;                 // beside the flood, where there is one
  std::optional<LoadOutcome> echo;  // when asked for; bytes are those of whole messages
  std::vector<EchoRound> rounds;    // of an echo: in the order that they were run
  // Of pairs: latency of each request less that of its echo.
  std::optional<LatencySummary> pair_differences;
  std::optional<FloodResult> flood;  // likewise
  ServerStages server_stages;        // empty for a server that does not count them
  // Of each case the first that this client sent, while it sent nothing else.
  std::vector<std::chrono::nanoseconds> first_calls;
};

/// Connections to one server and everything that is sent over them. One Run at a time.
class LoadSession {
 public:
  /// Connects, and sends each case once: the server refuses here what it would refuse throughout.
  /// `options` are valid. Errors: those of the first calls.
  static absl::StatusOr<std::unique_ptr<LoadSession>> Open(const LoadOptions& options);
  ~LoadSession();
  LoadSession(const LoadSession&) = delete;
  LoadSession& operator=(const LoadSession&) = delete;

  const std::string& server_version() const;
  const std::vector<std::string>& devices() const;

  /// Warms up and measures at `rate`, or in a closed loop. With an echo: rounds of echoes and
  /// requests, each with its warm-up, whose order changes from round to round, so that what drifts
  /// meanwhile meets both alike; or pairs. With a flood: the requests alone, then beside it. `label`
  /// stands before the progress. Errors: RESOURCE_EXHAUSTED when threads cannot be started; a
  /// request that fails is counted instead.
  absl::StatusOr<LoadResult> Run(std::optional<double> rate, const std::string& label,
                                 LoadProgress& progress);

 private:
  class Side;
  class Impl;
  explicit LoadSession(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace norm::normctl
