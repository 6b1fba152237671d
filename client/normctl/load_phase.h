// One phase of a load: requests in a closed or an open loop over connections that are open.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/normctl/load_connection.h"
#include "client/normctl/load_outcome.h"
#include "client/normctl/load_progress.h"
#include "client/normctl/mix_sequence.h"

namespace norm::normctl {

struct PhaseOptions {
  int64_t in_flight = 1;  // on each connection
  std::optional<double> rate = std::nullopt;
  std::chrono::nanoseconds warm_up{0};
  std::chrono::nanoseconds duration{0};
  absl::Duration timeout = absl::Seconds(60);
};

/// What a phase uses. Ownership: borrowed until RunPhase returns.
struct PhaseParts {
  const std::vector<std::unique_ptr<LoadConnection>>& connections;
  const MixSequence& sequence;
  size_t cases = 1;
  LoadProgress& progress;
};

/// Warms up and measures. Every request in flight is a thread. Errors: RESOURCE_EXHAUSTED when they
/// cannot all be started; what fails later is counted.
absl::StatusOr<LoadSamples> RunPhase(const PhaseOptions& options, const PhaseParts& parts);

}  // namespace norm::normctl
