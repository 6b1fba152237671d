#include "client/normctl/load_phase.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/normctl/load_schedule.h"

namespace norm::normctl {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

/// What one worker counted. Deques: a vector would copy what it has while latencies are taken.
struct Tally {
  std::deque<LoadSample> samples;
  std::deque<nanoseconds> send_delays;
  std::vector<CaseCounts> cases;
  absl::Status first_error;
  SteadyClock::time_point last_end;
};

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
    std::vector<Tally> tallies(connections * static_cast<size_t>(options_.in_flight));
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
  Tally RunWorker(LoadConnection& connection) {
    Tally tally;
    tally.cases.resize(parts_.cases);
    started_.wait(false, std::memory_order_acquire);
    tally.last_end = start_;
    if (abandoned_) return tally;
    schedule_.has_value() ? RunOpenLoop(connection, &tally) : RunClosedLoop(connection, &tally);
    return tally;
  }

  void RunClosedLoop(LoadConnection& connection, Tally* tally) {
    while (true) {
      const SteadyClock::time_point now = SteadyClock::now();
      if (now >= start_ + end_) return;
      Send(connection, now, now, tally);
    }
  }

  /// What the warm-up had no worker for is dropped: the window begins without its backlog.
  void RunOpenLoop(LoadConnection& connection, Tally* tally) {
    ::prctl(PR_SET_TIMERSLACK, 1UL);  // by default the kernel wakes a sleeper up to 50 us late
    SendUntil(connection, options_.warm_up, &next_of_warm_up_, tally);
    SendUntil(connection, end_, &next_of_window_, tally);
  }

  /// Free workers take the requests in turn, whatever their connection.
  void SendUntil(LoadConnection& connection, nanoseconds end, std::atomic<int64_t>* next,
                 Tally* tally) {
    while (true) {
      const nanoseconds intended =
          schedule_->IntendedAt(next->fetch_add(1, std::memory_order_relaxed));
      if (intended >= end || SteadyClock::now() >= start_ + end) return;
      std::this_thread::sleep_until(start_ + intended);
      const SteadyClock::time_point sent = SteadyClock::now();
      if (intended >= options_.warm_up) tally->send_delays.push_back(sent - (start_ + intended));
      Send(connection, start_ + intended, sent, tally);
    }
  }

  /// One request, whose latency counts from `begin`.
  void Send(LoadConnection& connection, SteadyClock::time_point begin, SteadyClock::time_point sent,
            Tally* tally) {
    const MixSequence::Place place =
        parts_.sequence.At(next_of_mix_.fetch_add(1, std::memory_order_relaxed));
    const absl::StatusOr<LoadReply> reply =
        connection.Send(place.case_index, place.ordinal, options_.timeout);
    const SteadyClock::time_point end = SteadyClock::now();
    parts_.progress.Count(reply.ok());
    if (begin < start_ + options_.warm_up) return;
    tally->last_end = end;
    CaseCounts& counts = tally->cases[place.case_index];
    if (!reply.ok()) {
      ++counts.errors[reply.status().code()];
      if (tally->first_error.ok()) tally->first_error = reply.status();
      return;
    }
    ++counts.completed;
    counts.bytes_sent += reply->bytes_sent;
    counts.bytes_received += reply->bytes_received;
    counts.retried += reply->tries > 1 ? 1 : 0;
    counts.retries += reply->tries - 1;
    const int64_t companions = std::max<int64_t>(1, reply->timing.batch_requests);
    tally->samples.push_back(LoadSample{.latency = end - begin,
                                        .case_index = static_cast<uint32_t>(place.case_index),
                                        .launches = 1.0F / static_cast<float>(companions),
                                        .retried = reply->tries > 1,
                                        .stages = ToStageTimes(reply->timing, end - sent)});
  }

  LoadSamples Merge(std::vector<Tally> tallies) const {
    LoadSamples all;
    all.cases.resize(parts_.cases);
    SteadyClock::time_point last_end = start_ + end_;
    for (Tally& tally : tallies) {
      LoadSamples one;
      one.samples.assign(tally.samples.begin(), tally.samples.end());
      one.send_delays.assign(tally.send_delays.begin(), tally.send_delays.end());
      one.cases = std::move(tally.cases);
      one.first_error = std::move(tally.first_error);
      last_end = std::max(last_end, tally.last_end);
      tally = Tally();
      all.Add(std::move(one));
    }
    all.measured_seconds =
        std::chrono::duration<double>(last_end - (start_ + options_.warm_up)).count();
    if (!schedule_.has_value()) return all;
    int64_t requests = 0;
    for (const CaseCounts& counts : all.cases) requests += counts.completed + counts.failed();
    all.not_sent = schedule_->RequestsIn(options_.warm_up, end_) - requests;
    return all;
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
