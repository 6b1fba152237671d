// What one thread that sends requests counts.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/normctl/load_connection.h"
#include "client/normctl/load_outcome.h"

namespace norm::normctl {

/// Threads:  one.
class LoadTally {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Of a load of `cases` cases.
  explicit LoadTally(size_t cases) : cases_(cases) {}

  /// When a request was meant to leave, when it left, and when it was answered.
  struct Times {
    TimePoint begin;
    TimePoint sent;
    TimePoint end;
  };
  void Count(size_t case_index, const absl::StatusOr<LoadReply>& reply, const Times& times);
  void CountSendDelay(std::chrono::nanoseconds delay) { send_delays_.push_back(delay); }

  bool empty() const { return last_end_ == TimePoint(); }
  /// From the first counted request's begin to the last one's end; zero without any.
  std::chrono::nanoseconds span() const { return last_end_ - first_begin_; }
  /// The end of the last counted request; the clock's epoch without any.
  TimePoint last_end() const { return last_end_; }
  /// Sum of what the counted requests took, from when they left.
  std::chrono::nanoseconds busy() const { return busy_; }

  /// Moves everything out, but for what the load as a whole has: measured_seconds and not_sent.
  LoadSamples TakeSamples();

 private:
  // Deques: a vector would copy what it has while latencies are taken.
  std::deque<LoadSample> samples_;
  std::deque<std::chrono::nanoseconds> send_delays_;
  std::vector<CaseCounts> cases_;
  absl::Status first_error_;
  TimePoint first_begin_;
  TimePoint last_end_;
  std::chrono::nanoseconds busy_{0};
};

/// Of the tallies that counted something; absent where none did.
std::optional<std::chrono::nanoseconds> MeanSpan(const std::vector<LoadTally>& tallies);

}  // namespace norm::normctl
