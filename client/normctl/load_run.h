// The load of `normctl bench`: requests in a closed or an open loop, and what became of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/normctl/latency_summary.h"
#include "client/normctl/load_options.h"

namespace norm::normctl {

/// Requests are counted when they start within the window that follows the warm-up; those of an
/// open loop start when they are meant to, whether or not they could be sent then.
struct LoadOutcome {
  std::string server_version;
  std::vector<std::string> devices;

  int64_t completed = 0;
  std::map<absl::StatusCode, int64_t> errors;
  absl::Status first_error;  // of one of the workers; OK without errors
  // Open loop: meant to leave within the window, at whose end no worker was free yet.
  std::optional<int64_t> not_sent;

  int64_t bytes_sent = 0;  // tensor bytes of the completed requests
  int64_t bytes_received = 0;
  double measured_seconds = 0;  // the window, and what its last answer took beyond it

  std::optional<LatencySummary> latency;     // of the completed requests
  std::optional<LatencySummary> send_delay;  // open loop: of all requests, from intended to sent

  int64_t failed() const;
  int64_t requests() const { return completed + failed(); }
  double requests_per_second() const;
  double gigabytes_per_second() const;  // both ways
};

/// Connects, warms up, measures. Every request in flight is a thread; requests are tried once.
/// `options` are valid. Errors: those of the first call on a connection; a request that fails later
/// is counted instead.
absl::StatusOr<LoadOutcome> RunLoad(const LoadOptions& options);

}  // namespace norm::normctl
