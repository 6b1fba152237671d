#include "client/normctl/load_pairs.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "client/normctl/load_tally.h"

namespace norm::normctl {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

class Side {
 public:
  explicit Side(const PhaseParts& parts) : parts_(parts), tally_(parts.cases) {}

  /// Sends and waits; the latency of what was completed.
  std::optional<nanoseconds> Send(const MixSequence::Place& place, absl::Duration timeout,
                                  bool counted) {
    const SteadyClock::time_point begin = SteadyClock::now();
    const absl::StatusOr<LoadReply> reply =
        parts_.connections[0]->Send(place.case_index, place.ordinal, timeout);
    const SteadyClock::time_point end = SteadyClock::now();
    parts_.progress.Count(reply.ok());
    if (counted) tally_.Count(place.case_index, reply, {begin, begin, end});
    return reply.ok() ? std::optional(end - begin) : std::nullopt;
  }

  LoadSamples TakeSamples() {
    LoadSamples taken = tally_.TakeSamples();
    taken.measured_seconds = std::chrono::duration<double>(tally_.busy()).count();
    return taken;
  }

 private:
  const PhaseParts& parts_;
  LoadTally tally_;
};

}  // namespace

PairedSamples RunPairs(const PhaseOptions& options, const PhaseParts& requests,
                       const PhaseParts& echoes) {
  Side request_side(requests);
  Side echo_side(echoes);
  PairedSamples paired;
  const SteadyClock::time_point window = SteadyClock::now() + options.warm_up;
  for (int64_t pair = 0;; ++pair) {
    const SteadyClock::time_point now = SteadyClock::now();
    if (now >= window + options.duration) break;
    const bool counted = now >= window;
    const MixSequence::Place place = requests.sequence.At(pair);
    std::optional<nanoseconds> request;
    if (pair % 2 != 0) request = request_side.Send(place, options.timeout, counted);
    const std::optional<nanoseconds> echo = echo_side.Send(place, options.timeout, counted);
    if (pair % 2 == 0) request = request_side.Send(place, options.timeout, counted);
    if (counted && request.has_value() && echo.has_value())
      paired.differences.push_back(*request - *echo);
  }
  paired.requests = request_side.TakeSamples();
  paired.echoes = echo_side.TakeSamples();
  return paired;
}

}  // namespace norm::normctl
