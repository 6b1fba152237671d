// Requests and their echoes in turn, one after the other.
#pragma once

#include <chrono>
#include <vector>

#include "client/normctl/load_outcome.h"
#include "client/normctl/load_phase.h"

namespace norm::normctl {

/// `measured_seconds` of each side is the time that its own requests took, so that their rates are
/// those of a loop without the other side.
struct PairedSamples {
  LoadSamples requests;
  LoadSamples echoes;
  /// Latency of each request less that of the echo beside it; of pairs that both completed.
  std::vector<std::chrono::nanoseconds> differences;
};

/// A closed loop in which each request has its echo right before or right after it, by turns, so
/// that whatever state the machine is in meets both. On the calling thread, over the first
/// connection of each; both have the same cases. The rate and in_flight of `options` are not looked
/// at.
PairedSamples RunPairs(const PhaseOptions& options, const PhaseParts& requests,
                       const PhaseParts& echoes);

}  // namespace norm::normctl
