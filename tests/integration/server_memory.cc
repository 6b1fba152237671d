#include "tests/integration/server_memory.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/support/http_get.h"

namespace norm::test {
namespace {

constexpr double kMib = 1 << 20;

struct Figure {
  const char* name;
  double MemorySample::*member;
  const char* series;  // those that begin so are added up; null: not of /metrics
};
constexpr Figure kFigures[] = {
    {"rss_mib", &MemorySample::rss, "process_resident_memory_bytes "},
    {"pinned_mib", &MemorySample::pinned, "normd_pinned_pool_bytes{"},
    {"device_pool_mib", &MemorySample::device_pool, "normd_device_pool_bytes{"},
    {"gpu_mib", &MemorySample::gpu, nullptr},
    {"in_flight_mib", &MemorySample::in_flight, "normd_in_flight_bytes "},
    {"in_flight_limit_mib", &MemorySample::in_flight_limit, "normd_in_flight_bytes_limit "},
};

bool MustBeFlat(const Figure& figure) {
  return figure.member != &MemorySample::in_flight &&
         figure.member != &MemorySample::in_flight_limit;
}

/// -1 without nvidia-smi.
double GpuMemory() {
  std::FILE* const tool =
      popen("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null", "r");
  if (tool == nullptr) return -1;
  double sum = -1;
  for (double one = 0; std::fscanf(tool, "%lf", &one) == 1;) sum = std::max(sum, 0.0) + one;
  pclose(tool);
  return sum;
}

}  // namespace

std::optional<MemorySample> ParseMemory(const std::string& metrics_text) {
  MemorySample sample;
  bool answered = false;
  for (const absl::string_view line : absl::StrSplit(metrics_text, '\n')) {
    for (const Figure& figure : kFigures) {
      if (figure.series == nullptr || !absl::StartsWith(line, figure.series)) continue;
      double bytes = 0;
      if (!absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &bytes)) return std::nullopt;
      sample.*figure.member += bytes / kMib;
      answered = true;
    }
  }
  if (!answered) return std::nullopt;
  return sample;
}

nlohmann::json MemoryReport(const std::vector<MemorySample>& samples, size_t settled,
                            double max_growth_mib) {
  nlohmann::json report = {{"samples", samples.size()}, {"max_growth_mib", max_growth_mib}};
  bool within = true;
  for (const Figure& figure : kFigures) {
    const double first = samples[std::min(settled, samples.size() - 1)].*figure.member;
    const double last = samples.back().*figure.member;
    double largest = first;
    for (const MemorySample& sample : samples) largest = std::max(largest, sample.*figure.member);
    report[figure.name] = {{"settled", first}, {"last", last}, {"largest", largest}};
    if (max_growth_mib > 0 && MustBeFlat(figure)) within &= last - first <= max_growth_mib;
  }
  for (const MemorySample& sample : samples) within &= sample.in_flight <= sample.in_flight_limit;
  report["within_limits"] = within;
  return report;
}

MemoryWatch::MemoryWatch(std::string metrics, absl::Duration interval)
    : metrics_(std::move(metrics)), interval_(interval), thread_([this] { Run(); }) {}

MemoryWatch::~MemoryWatch() {
  if (thread_.joinable()) Stop();
}

std::vector<MemorySample> MemoryWatch::Stop() {
  stop_.store(true);
  thread_.join();
  return std::move(samples_);
}

void MemoryWatch::Run() {
  absl::Time next = absl::Now();
  while (!stop_.load()) {
    if (absl::Now() >= next) {
      next += interval_;
      std::optional<MemorySample> sample = ParseMemory(HttpGet(metrics_, "/metrics"));
      if (sample.has_value()) {
        sample->gpu = GpuMemory();
        samples_.push_back(*sample);
      }
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
}

}  // namespace norm::test
