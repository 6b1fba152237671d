#include "client/normctl/load_outcome.h"

#include <cmath>
#include <numeric>
#include <utility>

namespace norm::normctl {
namespace {

using std::chrono::nanoseconds;

nanoseconds FromMicroseconds(float microseconds) {
  return nanoseconds(std::llround(static_cast<double>(microseconds) * 1e3));
}

/// Fills everything but the counts from the samples that `chosen` holds.
void SummarizeSamples(const std::vector<const LoadSample*>& chosen, SampleStages stages,
                      LoadFigures* figures) {
  std::vector<nanoseconds> times;
  times.reserve(chosen.size());
  for (const LoadSample* sample : chosen) times.push_back(sample->latency);
  figures->latency = Summarize(times);
  times.clear();
  for (const LoadSample* sample : chosen) {
    if (sample->retried) times.push_back(sample->latency);
  }
  figures->retried_latency = Summarize(times);
  if (chosen.empty() || stages == SampleStages::kAbsent) return;
  figures->stages.emplace();
  for (size_t stage = 0; stage < kLoadStages; ++stage) {
    times.clear();
    for (const LoadSample* sample : chosen)
      times.push_back(FromMicroseconds(sample->stages[stage]));
    (*figures->stages)[stage] = *Summarize(times);
  }
  double launches = 0;
  for (const LoadSample* sample : chosen) launches += static_cast<double>(sample->launches);
  figures->launches_per_request = launches / static_cast<double>(chosen.size());
}

}  // namespace

const char* LoadStageName(LoadStage stage) {
  switch (stage) {
    case LoadStage::kOutside:
      return "outside";
    case LoadStage::kDecode:
      return "decode";
    case LoadStage::kQueue:
      return "queue";
    case LoadStage::kCopyIn:
      return "copy_in";
    case LoadStage::kKernel:
      return "kernel";
    case LoadStage::kCopyOut:
      return "copy_out";
    case LoadStage::kOther:
      return "other";
  }
  return "unknown";
}

StageTimes ToStageTimes(const client::Timing& timing, nanoseconds since_sent) {
  const double sent_us = static_cast<double>(since_sent.count()) / 1e3;
  const double named_us = timing.decode_us + timing.queue_us + timing.copy_in_us +
                          timing.kernel_us + timing.copy_out_us;
  const std::array<double, kLoadStages> stages = {
      sent_us - timing.total_us, timing.decode_us,   timing.queue_us,           timing.copy_in_us,
      timing.kernel_us,          timing.copy_out_us, timing.total_us - named_us};
  StageTimes times;
  for (size_t i = 0; i < kLoadStages; ++i) times[i] = static_cast<float>(stages[i]);
  return times;
}

void CaseCounts::Add(const CaseCounts& other) {
  completed += other.completed;
  for (const auto& [code, count] : other.errors) errors[code] += count;
  bytes_sent += other.bytes_sent;
  bytes_received += other.bytes_received;
  retried += other.retried;
  retries += other.retries;
}

int64_t CaseCounts::failed() const {
  return std::accumulate(errors.begin(), errors.end(), int64_t{0},
                         [](int64_t sum, const auto& error) { return sum + error.second; });
}

void LoadSamples::Add(LoadSamples other) {
  samples.insert(samples.end(), other.samples.begin(), other.samples.end());
  send_delays.insert(send_delays.end(), other.send_delays.begin(), other.send_delays.end());
  if (cases.size() < other.cases.size()) cases.resize(other.cases.size());
  for (size_t i = 0; i < other.cases.size(); ++i) cases[i].Add(other.cases[i]);
  if (first_error.ok()) first_error = std::move(other.first_error);
  if (other.not_sent.has_value()) not_sent = not_sent.value_or(0) + *other.not_sent;
  measured_seconds += other.measured_seconds;
}

double LoadSamples::requests_per_second() const {
  int64_t completed = 0;
  for (const CaseCounts& counts : cases) completed += counts.completed;
  return static_cast<double>(completed) / measured_seconds;
}

double LoadOutcome::requests_per_second() const {
  return static_cast<double>(all.counts.completed) / measured_seconds;
}

double LoadOutcome::gigabytes_per_second() const {
  return static_cast<double>(all.counts.bytes_sent + all.counts.bytes_received) * 1e-9 /
         measured_seconds;
}

LoadOutcome Summarize(LoadSamples samples, SampleStages stages) {
  LoadOutcome outcome;
  std::vector<const LoadSample*> all;
  std::vector<std::vector<const LoadSample*>> by_case(samples.cases.size());
  all.reserve(samples.samples.size());
  for (const LoadSample& sample : samples.samples) {
    all.push_back(&sample);
    by_case[sample.case_index].push_back(&sample);
  }
  SummarizeSamples(all, stages, &outcome.all);
  for (size_t i = 0; i < by_case.size(); ++i) {
    LoadFigures& figures = outcome.cases.emplace_back();
    figures.counts = samples.cases[i];
    SummarizeSamples(by_case[i], stages, &figures);
    outcome.all.counts.Add(samples.cases[i]);
  }
  outcome.first_error = std::move(samples.first_error);
  outcome.not_sent = samples.not_sent;
  outcome.send_delay = Summarize(std::move(samples.send_delays));
  outcome.measured_seconds = samples.measured_seconds;
  return outcome;
}

}  // namespace norm::normctl
