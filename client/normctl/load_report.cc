#include "client/normctl/load_report.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace norm::normctl {
namespace {

double Microseconds(std::chrono::nanoseconds time) {
  return static_cast<double>(time.count()) / 1e3;
}

void AddLatency(const char* name, const std::optional<LatencySummary>& summary,
                std::string* table) {
  if (!summary.has_value()) {
    absl::StrAppendFormat(table, "%-13s %10s %10s %10s %10s %10s\n", name, "-", "-", "-", "-", "-");
    return;
  }
  absl::StrAppendFormat(table, "%-13s %10.1f %10.1f %10.1f %10.1f %10.1f\n", name,
                        Microseconds(summary->p50), Microseconds(summary->p90),
                        Microseconds(summary->p99), Microseconds(summary->p99_9),
                        Microseconds(summary->max));
}

void AddLoad(const LoadOutcome& outcome, std::string* table) {
  absl::StrAppendFormat(table, "%-13s %10d\n", "requests", outcome.all.requests());
  absl::StrAppendFormat(table, "%-13s %10d\n", "errors", outcome.all.counts.failed());
  for (const auto& [code, count] : outcome.all.counts.errors) {
    absl::StrAppendFormat(table, "%-13s %10d  %s\n", "", count, absl::StatusCodeToString(code));
  }
  if (outcome.all.counts.retried > 0) {
    absl::StrAppendFormat(table, "%-13s %10d  by %d tries more\n", "retried",
                          outcome.all.counts.retried, outcome.all.counts.retries);
  }
  if (outcome.not_sent.has_value())
    absl::StrAppendFormat(table, "%-13s %10d\n", "not sent", *outcome.not_sent);
  absl::StrAppendFormat(table, "%-13s %10.1f\n", "requests/s", outcome.requests_per_second());
  absl::StrAppendFormat(table, "%-13s %10.4f\n", "GB/s", outcome.gigabytes_per_second());
  absl::StrAppendFormat(table, "%-13s %10s %10s %10s %10s %10s\n", "", "p50", "p90", "p99", "p99.9",
                        "max");
  AddLatency("latency us", outcome.all.latency, table);
  if (outcome.all.retried_latency.has_value())
    AddLatency("  of retried", outcome.all.retried_latency, table);
  if (outcome.not_sent.has_value()) AddLatency("send delay us", outcome.send_delay, table);
}

void AddServerStage(const char* name, const std::optional<double>& mean_us, std::string* table) {
  if (!mean_us.has_value()) return;
  absl::StrAppendFormat(table, "  %-11s %10.1f %10s %10s %10s\n", name, *mean_us, "-", "-", "-");
}

void AddStages(const LoadFigures& figures, const ServerStages& server, std::string* table) {
  if (!figures.stages.has_value()) return;
  absl::StrAppendFormat(table, "%-13s %10s %10s %10s %10s\n", "stage us", "mean", "p50", "p99",
                        "max");
  for (size_t i = 0; i < kLoadStages; ++i) {
    const LatencySummary& stage = (*figures.stages)[i];
    absl::StrAppendFormat(table, "  %-11s %10.1f %10.1f %10.1f %10.1f\n",
                          LoadStageName(static_cast<LoadStage>(i)), Microseconds(stage.mean),
                          Microseconds(stage.p50), Microseconds(stage.p99),
                          Microseconds(stage.max));
  }
  AddServerStage("encode", server.encode_us, table);
  AddServerStage("send", server.send_us, table);
  absl::StrAppendFormat(table, "%-13s %10.3f\n", "launches/req.", figures.launches_per_request);
}

void AddCases(const LoadOptions& options, const LoadOutcome& outcome, std::string* table) {
  if (outcome.cases.size() < 2) return;
  absl::StrAppendFormat(table, "%-13s %10s %10s %10s\n", "cases", "errors", "p50 us", "p99 us");
  for (size_t i = 0; i < outcome.cases.size(); ++i) {
    const LoadFigures& figures = outcome.cases[i];
    const LatencySummary latency = figures.latency.value_or(LatencySummary());
    absl::StrAppendFormat(table, "%13d %10d %10.1f %10.1f  %s\n", figures.requests(),
                          figures.counts.failed(), Microseconds(latency.p50),
                          Microseconds(latency.p99), options.cases[i].Name());
  }
}

void AddEcho(const LoadOptions& options, const LoadResult& result, std::string* table) {
  if (!result.echo.has_value()) return;
  absl::StrAppendFormat(
      table, "echo of %s\n",
      *options.echo == EchoSize::kSame ? "messages of the same sizes" : "empty messages");
  AddLoad(*result.echo, table);
  const std::optional<EchoComparison> over = CompareWithEcho(result);
  if (!over.has_value()) return;
  absl::StrAppendFormat(table, "%-13s %10.3f of the echo's requests/s\n", "ratio",
                        over->requests_per_second);
  if (over->rounds.has_value()) {
    absl::StrAppendFormat(table, "%-13s %10.3f the median of %d, %.3f to %.3f\n", "  by rounds",
                          over->rounds->median, result.rounds.size(), over->rounds->min,
                          over->rounds->max);
  }
  absl::StrAppendFormat(table, "%-13s %+10.1f us at p50, %+.1f us at p99\n", "over the echo",
                        Microseconds(over->p50), Microseconds(over->p99));
  if (!result.pair_differences.has_value()) return;
  absl::StrAppendFormat(table, "%-13s %10s %10s %10s %10s %10s\n", "", "p50", "p90", "p99", "p99.9",
                        "max");
  AddLatency("  by pairs us", result.pair_differences, table);
}

void AddFlood(const LoadOptions& options, const LoadResult& result, std::string* table) {
  if (!result.flood.has_value()) return;
  const LoadFlood& flood = *options.flood;
  absl::StrAppend(table, "the same requests alone\n");
  AddLoad(result.flood->alone, table);
  absl::StrAppendFormat(table, "the flood: %s, %d connections x %d in flight\n",
                        flood.mix.empty() ? "the same cases" : flood.mix, flood.connections,
                        flood.in_flight);
  AddLoad(result.flood->flood, table);
  const std::optional<FloodComparison> over = CompareWithAlone(result);
  if (!over.has_value()) return;
  absl::StrAppendFormat(table, "%-13s %10.2f times alone at p50, %.2f at p99\n", "beside it",
                        over->p50, over->p99);
}

}  // namespace

std::optional<FloodComparison> CompareWithAlone(const LoadResult& result) {
  if (!result.flood.has_value() || !result.flood->alone.all.latency.has_value() ||
      !result.load.all.latency.has_value()) {
    return std::nullopt;
  }
  const LatencySummary& beside = *result.load.all.latency;
  const LatencySummary& alone = *result.flood->alone.all.latency;
  return FloodComparison{.p50 = Microseconds(beside.p50) / Microseconds(alone.p50),
                         .p99 = Microseconds(beside.p99) / Microseconds(alone.p99)};
}

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t size = values.size();
  return {.median = (values[(size - 1) / 2] + values[size / 2]) / 2,
          .min = values.front(),
          .max = values.back()};
}

std::optional<EchoComparison> CompareWithEcho(const LoadResult& result) {
  if (!result.echo.has_value() || !result.echo->all.latency.has_value() ||
      !result.load.all.latency.has_value()) {
    return std::nullopt;
  }
  const LatencySummary& load = *result.load.all.latency;
  const LatencySummary& echo = *result.echo->all.latency;
  std::vector<double> ratios;
  for (const EchoRound& round : result.rounds) {
    if (round.echoes_per_second > 0) ratios.push_back(round.ratio());
  }
  return EchoComparison{
      .requests_per_second = result.load.requests_per_second() / result.echo->requests_per_second(),
      .p50 = load.p50 - echo.p50,
      .p99 = load.p99 - echo.p99,
      .rounds = ratios.empty() ? std::nullopt : std::optional(SpreadOf(std::move(ratios)))};
}

std::string DescribeLoad(const LoadOptions& options, const ServerIdentity& server) {
  const std::string what = options.cases.size() == 1
                               ? options.cases[0].Name()
                               : absl::StrCat(options.cases.size(), " cases of ", options.mix);
  return absl::StrFormat("%s, %d connections x %d in flight, %s, %g s after %g s; normd %s on %s",
                         what, options.connections, options.in_flight,
                         LoadTransportName(options.transport), options.duration_seconds,
                         options.warm_up_seconds, server.version,
                         absl::StrJoin(server.devices, " "));
}

std::string LoadTable(const LoadOptions& options, const ServerIdentity& server,
                      const LoadResult& result) {
  const std::string loop = options.rate.has_value()
                               ? absl::StrFormat("open loop, %g requests/s", *options.rate)
                               : "closed loop";
  std::string table = absl::StrCat(loop, " of ", DescribeLoad(options, server), "\n");
  AddLoad(result.load, &table);
  AddStages(result.load.all, result.server_stages, &table);
  AddCases(options, result.load, &table);
  AddEcho(options, result, &table);
  AddFlood(options, result, &table);
  return table;
}

}  // namespace norm::normctl
