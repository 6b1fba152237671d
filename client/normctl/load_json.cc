#include "client/normctl/load_json.h"

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace norm::normctl {
namespace {

using nlohmann::json;

double Microseconds(std::chrono::nanoseconds time) {
  return static_cast<double>(time.count()) / 1e3;
}

json ToJson(const LatencySummary& summary) {
  return {{"mean", Microseconds(summary.mean)},   {"p50", Microseconds(summary.p50)},
          {"p90", Microseconds(summary.p90)},     {"p99", Microseconds(summary.p99)},
          {"p99.9", Microseconds(summary.p99_9)}, {"max", Microseconds(summary.max)}};
}

json ToJson(const std::optional<LatencySummary>& summary) {
  return summary.has_value() ? ToJson(*summary) : json(nullptr);
}

template <typename T>
json OrNull(const std::optional<T>& value) {
  return value.has_value() ? json(*value) : json(nullptr);
}

json Stages(const LoadFigures& figures) {
  if (!figures.stages.has_value()) return nullptr;
  json stages = json::object();
  for (size_t i = 0; i < kLoadStages; ++i)
    stages[LoadStageName(static_cast<LoadStage>(i))] = ToJson((*figures.stages)[i]);
  return stages;
}

/// Counts and latencies: of a case, or of everything.
json Figures(const LoadFigures& figures) {
  json errors = json::object();
  for (const auto& [code, count] : figures.counts.errors)
    errors[absl::StatusCodeToString(code)] = count;
  return {{"requests", figures.requests()},
          {"completed", figures.counts.completed},
          {"failed", figures.counts.failed()},
          {"errors", errors},
          {"retried", figures.counts.retried},
          {"retries", figures.counts.retries},
          {"bytes_sent", figures.counts.bytes_sent},
          {"bytes_received", figures.counts.bytes_received},
          {"latency_us", ToJson(figures.latency)},
          {"retried_latency_us", ToJson(figures.retried_latency)},
          {"stages_us", Stages(figures)},
          {"launches_per_request",
           figures.stages.has_value() ? json(figures.launches_per_request) : json(nullptr)}};
}

json Outcome(const LoadOutcome& outcome) {
  json figures = Figures(outcome.all);
  figures.update({{"not_sent", OrNull(outcome.not_sent)},
                  {"send_delay_us", ToJson(outcome.send_delay)},
                  {"measured_seconds", outcome.measured_seconds},
                  {"requests_per_second", outcome.requests_per_second()},
                  {"gb_per_second", outcome.gigabytes_per_second()}});
  return figures;
}

json OverEcho(const LoadResult& result) {
  const std::optional<EchoComparison> over = CompareWithEcho(result);
  if (!over.has_value()) return nullptr;
  return {{"requests_per_second_ratio", over->requests_per_second},
          {"p50_us", Microseconds(over->p50)},
          {"p99_us", Microseconds(over->p99)},
          {"rounds", over->rounds.has_value() ? json{{"median", over->rounds->median},
                                                     {"min", over->rounds->min},
                                                     {"max", over->rounds->max}}
                                              : json(nullptr)},
          {"pairs_us", ToJson(result.pair_differences)}};
}

json Rounds(const std::vector<EchoRound>& rounds) {
  json list = json::array();
  for (const EchoRound& round : rounds) {
    list.push_back({{"requests_per_second", round.requests_per_second},
                    {"echoes_per_second", round.echoes_per_second}});
  }
  return list;
}

json OverAlone(const LoadResult& result) {
  const std::optional<FloodComparison> over = CompareWithAlone(result);
  if (!over.has_value()) return nullptr;
  return {{"p50_ratio", over->p50}, {"p99_ratio", over->p99}};
}

json FloodOptions(const LoadFlood& flood) {
  return {{"connections", flood.connections},
          {"in_flight", flood.in_flight},
          {"mix", flood.mix.empty() ? json(nullptr) : json(flood.mix)}};
}

json CaseOptions(const LoadCase& load_case) {
  json fields = {{"name", load_case.Name()},
                 {"op", OpName(load_case.op)},
                 {"direction", DirectionName(load_case.direction)},
                 {"shape", load_case.shape},
                 {"dtype", DTypeName(load_case.dtype)},
                 {"weight", load_case.weight},
                 {"bias", load_case.bias},
                 {"residual", load_case.residual},
                 {"running", load_case.running},
                 {"weight_dtype", DTypeName(load_case.parameter_dtype())},
                 {"priority", client::PriorityName(load_case.priority)},
                 {"share", load_case.share},
                 {"sets", load_case.sets}};
  if (load_case.op != Op::kBatchNorm) return fields;
  fields["mode"] = load_case.mode == BatchNormMode::kTraining ? "training" : "inference";
  fields["layout"] = load_case.layout == BatchNormLayout::kNchw ? "nchw" : "nhwc";
  return fields;
}

json Options(const LoadOptions& options) {
  const client::ClientOptions& client = options.client_options;
  return {{"server", options.server},
          {"tls", client.tls.has_value()},
          {"token", !client.token.empty() || !client.token_file.empty()},
          {"timeout_seconds", absl::ToDoubleSeconds(options.timeout)},
          {"attempts", options.attempts},
          {"mix", options.mix.empty() ? json(nullptr) : json(options.mix)},
          {"transport", LoadTransportName(options.transport)},
          {"echo", options.echo.has_value() ? json(EchoSizeName(*options.echo)) : json(nullptr)},
          {"rounds", options.rounds},
          {"pairs", options.pairs},
          {"connections", options.connections},
          {"in_flight", options.in_flight},
          {"rate", OrNull(options.rate)},
          {"flood", options.flood.has_value() ? FloodOptions(*options.flood) : json(nullptr)},
          {"warm_up_seconds", options.warm_up_seconds},
          {"duration_seconds", options.duration_seconds}};
}

json Result(const LoadOptions& options, const LoadResult& result) {
  json report = Outcome(result.load);
  report["cases"] = json::array();
  for (size_t i = 0; i < result.load.cases.size(); ++i) {
    json one = CaseOptions(options.cases[i]);
    one.update(Figures(result.load.cases[i]));
    one["first_call_us"] =
        i < result.first_calls.size() ? json(Microseconds(result.first_calls[i])) : json(nullptr);
    report["cases"].push_back(one);
  }
  report["echo"] = result.echo.has_value() ? Outcome(*result.echo) : json(nullptr);
  report["server_stages_us"] = {{"encode", OrNull(result.server_stages.encode_us)},
                                {"send", OrNull(result.server_stages.send_us)}};
  report["over_echo"] = OverEcho(result);
  report["rounds"] = Rounds(result.rounds);
  report["alone"] = result.flood.has_value() ? Outcome(result.flood->alone) : json(nullptr);
  report["flood"] = result.flood.has_value() ? Outcome(result.flood->flood) : json(nullptr);
  report["over_alone"] = OverAlone(result);
  return report;
}

json Head(const LoadOptions& options, const ServerIdentity& server) {
  return {{"options", Options(options)},
          {"server_version", server.version},
          {"devices", server.devices}};
}

std::string Dump(const json& report) {
  return report.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string LoadJson(const LoadOptions& options, const ServerIdentity& server,
                     const LoadResult& result) {
  json report = Head(options, server);
  report.update(Result(options, result));
  return Dump(report);
}

std::string SweepJson(const LoadOptions& options, const ServerIdentity& server,
                      const SweepResult& result) {
  json report = Head(options, server);
  report["peak"] = Result(options, result.peak);
  report["points"] = json::array();
  for (const SweepPoint& point : result.points) {
    json one = Result(options, point.result);
    one["rate"] = point.rate;
    report["points"].push_back(one);
  }
  return Dump(report);
}

}  // namespace norm::normctl
