#include "client/normctl/load_sweep.h"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace norm::normctl {
namespace {

constexpr double kSharesOfPeak[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1};

double Microseconds(std::chrono::nanoseconds time) {
  return static_cast<double>(time.count()) / 1e3;
}

void AddLine(const std::string& rate, const LoadResult& result, std::string* table) {
  const LoadOutcome& load = result.load;
  const LatencySummary latency = load.all.latency.value_or(LatencySummary());
  absl::StrAppendFormat(table, "%12s %12.1f %10.1f %10.1f %10.1f %10d %8d", rate,
                        load.requests_per_second(), Microseconds(latency.p50),
                        Microseconds(latency.p99), Microseconds(latency.p99_9),
                        load.not_sent.value_or(0), load.all.counts.failed());
  if (result.echo.has_value()) {
    const LatencySummary echo = result.echo->all.latency.value_or(LatencySummary());
    absl::StrAppendFormat(table, " %10.1f %10.1f", Microseconds(echo.p50), Microseconds(echo.p99));
  }
  table->append("\n");
}

}  // namespace

std::vector<double> SweepRates(double peak_requests_per_second, double duration_seconds) {
  std::vector<double> rates;
  for (const double share : kSharesOfPeak) {
    // Three digits: what a table shows is what was sent.
    const double exact = share * peak_requests_per_second;
    const double unit = std::pow(10.0, std::floor(std::log10(exact)) - 2);
    const double rate = std::round(exact / unit) * unit;
    if (CheckRate("--sweep", rate, duration_seconds).ok()) rates.push_back(rate);
  }
  return rates;
}

absl::StatusOr<SweepResult> RunSweep(LoadSession& session, const LoadOptions& options,
                                     std::vector<double> rates, LoadProgress& progress) {
  SweepResult sweep;
  absl::StatusOr<LoadResult> peak = session.Run(std::nullopt, "peak, ", progress);
  if (!peak.ok()) return peak.status();
  sweep.peak = *std::move(peak);
  const LoadOutcome& closed = sweep.peak.load;
  if (closed.all.counts.completed == 0) {
    return closed.first_error.ok() ? absl::UnavailableError("the closed loop completed no request")
                                   : closed.first_error;
  }
  if (rates.empty()) rates = SweepRates(closed.requests_per_second(), options.duration_seconds);
  for (size_t i = 0; i < rates.size(); ++i) {
    absl::StatusOr<LoadResult> result = session.Run(
        rates[i], absl::StrFormat("rate %d of %d, %g requests/s, ", i + 1, rates.size(), rates[i]),
        progress);
    if (!result.ok()) return result.status();
    sweep.points.push_back({rates[i], *std::move(result)});
  }
  return sweep;
}

std::string SweepTable(const LoadOptions& options, const ServerIdentity& server,
                       const SweepResult& result) {
  std::string table = absl::StrCat("sweep of ", DescribeLoad(options, server), "\n");
  absl::StrAppendFormat(&table, "%12s %12s %10s %10s %10s %10s %8s", "rate", "requests/s", "p50 us",
                        "p99 us", "p99.9 us", "not sent", "errors");
  if (options.echo.has_value()) absl::StrAppendFormat(&table, " %10s %10s", "echo p50", "echo p99");
  table.append("\n");
  AddLine("closed loop", result.peak, &table);
  for (const SweepPoint& point : result.points)
    AddLine(absl::StrFormat("%g", point.rate), point.result, &table);
  return table;
}

}  // namespace norm::normctl
