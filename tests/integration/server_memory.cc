#include "tests/integration/server_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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

/// The sum of the last numbers of those lines of nvidia-smi that begin with `first`; -1 where there
/// are none.
double AskDriver(const std::string& query, const std::string& first) {
  const std::string command = "nvidia-smi " + query + " --format=csv,noheader,nounits 2>/dev/null";
  std::FILE* const tool = popen(command.c_str(), "r");
  if (tool == nullptr) return -1;
  double sum = -1;
  char line[256];
  while (std::fgets(line, sizeof(line), tool) != nullptr) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    double one = 0;
    if (!absl::StartsWith(text, first) ||
        !absl::SimpleAtod(text.substr(text.find_last_of(' ') + 1), &one)) {
      continue;
    }
    sum = std::max(sum, 0.0) + one;
  }
  pclose(tool);
  return sum;
}

}  // namespace

double GpuMemory() {
  const char* const process = std::getenv("NORMD_PID");
  const double own = process == nullptr ? -1
                                        : AskDriver("--query-compute-apps=pid,used_memory",
                                                    absl::StrCat(process, ","));
  return own >= 0 ? own : AskDriver("--query-gpu=memory.used", "");
}

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
