#include "client/normctl/load_report.h"

#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace norm::normctl {
namespace {

double Microseconds(std::chrono::nanoseconds time) {
  return static_cast<double>(time.count()) / 1e3;
}

void AddRow(const char* name, const std::optional<LatencySummary>& summary, std::string* table) {
  if (!summary.has_value()) {
    absl::StrAppendFormat(table, "%-13s %10s %10s %10s %10s %10s\n", name, "-", "-", "-", "-", "-");
    return;
  }
  absl::StrAppendFormat(table, "%-13s %10.1f %10.1f %10.1f %10.1f %10.1f\n", name,
                        Microseconds(summary->p50), Microseconds(summary->p90),
                        Microseconds(summary->p99), Microseconds(summary->p99_9),
                        Microseconds(summary->max));
}

std::string LoopName(const LoadOptions& options) {
  if (!options.rate.has_value()) return "closed loop";
  return absl::StrFormat("open loop, %g requests/s", *options.rate);
}

nlohmann::json ToJson(const std::optional<LatencySummary>& summary) {
  if (!summary.has_value()) return nullptr;
  return {{"p50", Microseconds(summary->p50)},
          {"p90", Microseconds(summary->p90)},
          {"p99", Microseconds(summary->p99)},
          {"p99.9", Microseconds(summary->p99_9)},
          {"max", Microseconds(summary->max)}};
}

template <typename T>
nlohmann::json OrNull(const std::optional<T>& value) {
  return value.has_value() ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

}  // namespace

std::string LoadTable(const LoadOptions& options, const LoadOutcome& outcome) {
  std::string table = absl::StrFormat(
      "%s %dx%d %s, %d connections x %d in flight, %s, %g s after %g s; normd %s on %s\n",
      OpName(options.op), options.shape.rows, options.shape.hidden, DTypeName(options.dtype),
      options.connections, options.in_flight, LoopName(options), options.duration_seconds,
      options.warm_up_seconds, outcome.server_version, absl::StrJoin(outcome.devices, " "));
  absl::StrAppendFormat(&table, "%-13s %10d\n", "requests", outcome.requests());
  absl::StrAppendFormat(&table, "%-13s %10d\n", "errors", outcome.failed());
  for (const auto& [code, count] : outcome.errors) {
    absl::StrAppendFormat(&table, "%-13s %10d  %s\n", "", count, absl::StatusCodeToString(code));
  }
  if (outcome.not_sent.has_value()) {
    absl::StrAppendFormat(&table, "%-13s %10d\n", "not sent", *outcome.not_sent);
  }
  absl::StrAppendFormat(&table, "%-13s %10.1f\n", "requests/s", outcome.requests_per_second());
  absl::StrAppendFormat(&table, "%-13s %10.4f\n", "GB/s", outcome.gigabytes_per_second());
  absl::StrAppendFormat(&table, "%-13s %10s %10s %10s %10s %10s\n", "", "p50", "p90", "p99",
                        "p99.9", "max");
  AddRow("latency us", outcome.latency, &table);
  if (options.rate.has_value()) AddRow("send delay us", outcome.send_delay, &table);
  return table;
}

std::string LoadJson(const LoadOptions& options, const LoadOutcome& outcome) {
  nlohmann::json errors = nlohmann::json::object();
  for (const auto& [code, count] : outcome.errors) errors[absl::StatusCodeToString(code)] = count;
  const nlohmann::json report = {{"options",
                                  {{"server", options.server},
                                   {"timeout_seconds", absl::ToDoubleSeconds(options.timeout)},
                                   {"op", OpName(options.op)},
                                   {"shape", {options.shape.rows, options.shape.hidden}},
                                   {"dtype", DTypeName(options.dtype)},
                                   {"connections", options.connections},
                                   {"in_flight", options.in_flight},
                                   {"rate", OrNull(options.rate)},
                                   {"warm_up_seconds", options.warm_up_seconds},
                                   {"duration_seconds", options.duration_seconds}}},
                                 {"server_version", outcome.server_version},
                                 {"devices", outcome.devices},
                                 {"requests", outcome.requests()},
                                 {"completed", outcome.completed},
                                 {"failed", outcome.failed()},
                                 {"errors", errors},
                                 {"not_sent", OrNull(outcome.not_sent)},
                                 {"bytes_sent", outcome.bytes_sent},
                                 {"bytes_received", outcome.bytes_received},
                                 {"measured_seconds", outcome.measured_seconds},
                                 {"requests_per_second", outcome.requests_per_second()},
                                 {"gb_per_second", outcome.gigabytes_per_second()},
                                 {"latency_us", ToJson(outcome.latency)},
                                 {"send_delay_us", ToJson(outcome.send_delay)}};
  return report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace norm::normctl
