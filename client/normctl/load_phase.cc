#include "client/normctl/load_phase.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/normctl/load_schedule.h"
#include "client/normctl/load_tally.h"

namespace norm::normctl {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

/// The workers borrow it; Run joins them.
class Phase {
 public:
  Phase(const PhaseOptions& options, const PhaseParts& parts)
      : options_(options), parts_(parts), end_(options.warm_up + options.duration) {
    if (!options.rate.has_value()) return;
    schedule_.emplace(*options.rate);
    next_of_window_ = schedule_->FirstAtOrAfter(options.warm_up);
  }

  absl::StatusOr<LoadSamples> Run() {
    const size_t connections = parts_.connections.size();
    std::vector<LoadTally> tallies(connections * static_cast<size_t>(options_.in_flight),
                                   LoadTally(parts_.cases));
    std::vector<std::thread> workers;
    workers.reserve(tallies.size());
    absl::Status started;
    for (size_t i = 0; i < tallies.size() && started.ok(); ++i) {
      LoadConnection& connection = *parts_.connections[i % connections];
      try {
        workers.emplace_back(
            [this, tally = &tallies[i], &connection] { *tally = RunWorker(connection); });
      } catch (const std::system_error& error) {
        started = absl::ResourceExhaustedError(absl::StrCat(
            "only ", workers.size(), " of ", tallies.size(),
            " threads, one for each request in flight, can be started: ", error.what()));
      }
    }
    abandoned_ = !started.ok();
    start_ = SteadyClock::now();
    started_.test_and_set(std::memory_order_release);
    started_.notify_all();
    for (std::thread& worker : workers) worker.join();
    if (!started.ok()) return started;
    return Merge(std::move(tallies));
  }

 private:
  LoadTally RunWorker(LoadConnection& connection) {
    LoadTally tally(parts_.cases);
    started_.wait(false, std::memory_order_acquire);
    if (abandoned_) return tally;
    schedule_.has_value() ? RunOpenLoop(connection, &tally) : RunClosedLoop(connection, &tally);
    return tally;
  }

  void RunClosedLoop(LoadConnection& connection, LoadTally* tally) {
    while (true) {
      const SteadyClock::time_point now = SteadyClock::now();
      if (now >= start_ + end_) return;
      Send(connection, now, now, tally);
    }
  }

  /// What the warm-up had no worker for is dropped: the window begins without its backlog.
  void RunOpenLoop(LoadConnection& connection, LoadTally* tally) {
    ::prctl(PR_SET_TIMERSLACK, 1UL);  // by default the kernel wakes a sleeper up to 50 us late
    SendUntil(connection, options_.warm_up, &next_of_warm_up_, tally);
    SendUntil(connection, end_, &next_of_window_, tally);
  }

  /// Free workers take the requests in turn, whatever their connection.
  void SendUntil(LoadConnection& connection, nanoseconds end, std::atomic<int64_t>* next,
                 LoadTally* tally) {
    while (true) {
      const nanoseconds intended =
          schedule_->IntendedAt(next->fetch_add(1, std::memory_order_relaxed));
      if (intended >= end || SteadyClock::now() >= start_ + end) return;
      std::this_thread::sleep_until(start_ + intended);
      const SteadyClock::time_point sent = SteadyClock::now();
      if (intended >= options_.warm_up) tally->CountSendDelay(sent - (start_ + intended));
      Send(connection, start_ + intended, sent, tally);
    }
  }

  /// One request, whose latency counts from `begin`.
  void Send(LoadConnection& connection, SteadyClock::time_point begin, SteadyClock::time_point sent,
            LoadTally* tally) {
    const MixSequence::Place place =
        parts_.sequence.At(next_of_mix_.fetch_add(1, std::memory_order_relaxed));
    const absl::StatusOr<LoadReply> reply =
        connection.Send(place.case_index, place.ordinal, options_.timeout);
    const SteadyClock::time_point end = SteadyClock::now();
    parts_.progress.Count(reply.ok());
    if (begin >= start_ + options_.warm_up)
      tally->Count(place.case_index, reply, {begin, sent, end});
  }

  LoadSamples Merge(std::vector<LoadTally> tallies) const {
    LoadSamples all;
    all.cases.resize(parts_.cases);
    for (LoadTally& tally : tallies) all.Add(tally.TakeSamples());
    all.measured_seconds = std::chrono::duration<double>(Measured(tallies)).count();
    if (!schedule_.has_value()) return all;
    int64_t requests = 0;
    for (const CaseCounts& counts : all.cases) requests += counts.completed + counts.failed();
    all.not_sent = schedule_->RequestsIn(options_.warm_up, end_) - requests;
    return all;
  }

  /// Of an open loop the window, and what its last answer took beyond it. Of a closed one what the
  /// workers' requests took, from the first counted one to the last: the window would hold what was
  /// begun before it and miss what was ended after it.
  nanoseconds Measured(const std::vector<LoadTally>& tallies) const {
    const std::optional<nanoseconds> span = MeanSpan(tallies);
    if (!schedule_.has_value()) return span.value_or(options_.duration);
    SteadyClock::time_point last_end = start_ + end_;
    for (const LoadTally& tally : tallies) last_end = std::max(last_end, tally.last_end());
    return last_end - (start_ + options_.warm_up);
  }

  const PhaseOptions& options_;
  const PhaseParts& parts_;
  const nanoseconds end_;                     // from the start
  std::optional<OpenLoopSchedule> schedule_;  // of an open loop
  // Written before started_ is set.
  SteadyClock::time_point start_;
  bool abandoned_ = false;
  std::atomic_flag started_;
  std::atomic<int64_t> next_of_mix_{0};
  // Of an open loop: the first requests that no worker has taken.
  std::atomic<int64_t> next_of_warm_up_{0};
  std::atomic<int64_t> next_of_window_{0};
};

}  // namespace

absl::StatusOr<LoadSamples> RunPhase(const PhaseOptions& options, const PhaseParts& parts) {
  return Phase(options, parts).Run();
}

}  // namespace norm::normctl
