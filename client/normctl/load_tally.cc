#include "client/normctl/load_tally.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace norm::normctl {

void LoadTally::Count(size_t case_index, const absl::StatusOr<LoadReply>& reply,
                      const Times& times) {
  if (empty()) first_begin_ = times.begin;
  last_end_ = times.end;
  busy_ += times.end - times.sent;
  CaseCounts& counts = cases_[case_index];
  if (!reply.ok()) {
    ++counts.errors[reply.status().code()];
    if (first_error_.ok()) first_error_ = reply.status();
    return;
  }
  ++counts.completed;
  counts.bytes_sent += reply->bytes_sent;
  counts.bytes_received += reply->bytes_received;
  counts.retried += reply->tries > 1 ? 1 : 0;
  counts.retries += reply->tries - 1;
  const int64_t companions = std::max<int64_t>(1, reply->timing.batch_requests);
  samples_.push_back(LoadSample{.latency = times.end - times.begin,
                                .case_index = static_cast<uint32_t>(case_index),
                                .launches = 1.0F / static_cast<float>(companions),
                                .retried = reply->tries > 1,
                                .stages = ToStageTimes(reply->timing, times.end - times.sent)});
}

LoadSamples LoadTally::TakeSamples() {
  LoadSamples taken;
  taken.samples.assign(samples_.begin(), samples_.end());
  taken.send_delays.assign(send_delays_.begin(), send_delays_.end());
  taken.cases = std::move(cases_);
  taken.first_error = std::move(first_error_);
  samples_.clear();
  send_delays_.clear();
  return taken;
}

std::optional<std::chrono::nanoseconds> MeanSpan(const std::vector<LoadTally>& tallies) {
  std::chrono::nanoseconds sum{0};
  int64_t counting = 0;
  for (const LoadTally& tally : tallies) {
    if (tally.empty()) continue;
    sum += tally.span();
    ++counting;
  }
  return counting == 0 ? std::nullopt : std::optional(sum / counting);
}

}  // namespace norm::normctl
