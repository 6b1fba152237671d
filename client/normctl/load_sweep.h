// Latency against load: one closed loop for the peak, then open loops at growing rates.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/normctl/load_report.h"
#include "client/normctl/load_run.h"

namespace norm::normctl {

struct SweepPoint {
  double rate = 0;  // requests/s meant to leave
  LoadResult result;
};

struct SweepResult {
  LoadResult peak;
  std::vector<SweepPoint> points;  // by rate
};

/// From a tenth of the peak to a tenth above it, closer where latency begins to climb; those alone
/// that a run of `duration_seconds` can have.
std::vector<double> SweepRates(double peak_requests_per_second, double duration_seconds);

/// `rates` ascend; without any those of SweepRates. Errors: those of a run; UNAVAILABLE or the
/// requests' own error when the closed loop completes nothing.
absl::StatusOr<SweepResult> RunSweep(LoadSession& session, const LoadOptions& options,
                                     std::vector<double> rates, LoadProgress& progress);

/// A line for each rate, with a last newline.
std::string SweepTable(const LoadOptions& options, const ServerIdentity& server,
                       const SweepResult& result);

}  // namespace norm::normctl
