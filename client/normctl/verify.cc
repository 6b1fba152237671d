#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/normctl/commands.h"
#include "client/normctl/manifest.h"
#include "client/normctl/server_flags.h"
#include "client/tensor_file/tensor_file.h"
#include "nlohmann/json.hpp"

namespace norm::normctl {
namespace {

struct VerifyFlags {
  ServerFlags server;
  std::string manifest;
  int repeat = 3;
};

/// A case's row of the table.
struct CaseReport {
  std::string name;
  Op op = Op::kRmsNorm;
  Direction direction = Direction::kForward;
  std::string shape;
  std::string dtype;
  std::string device;
  double max_error = 0.0;
  double max_used_share = 0.0;
  double latency_us = 0.0;  // the median of the repetitions
  double gb_per_s = 0.0;
  std::vector<std::string> mismatches;
};

bool SameBits(const client::Tensor& a, const client::Tensor& b) {
  return a.bytes().size() == b.bytes().size() &&
         (a.bytes().empty() ||
          std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0);
}

absl::StatusOr<NamedTensors> ReadInputs(const VerifyCase& verify_case) {
  NamedTensors inputs;
  for (const auto& [name, reference] : verify_case.inputs) {
    absl::StatusOr<client::Tensor> tensor = client::ReadTensor(reference);
    if (!tensor.ok()) return tensor.status();
    inputs.emplace(name, *std::move(tensor));
  }
  return inputs;
}

/// Compares one output with its golden and notes what differs.
absl::Status CompareOutput(const VerifyCase& verify_case, const std::string& name,
                           const ExpectedOutput& expected, const NamedTensors& outputs,
                           CaseReport* report) {
  const auto found = outputs.find(name);
  if (found == outputs.end()) {
    report->mismatches.push_back(absl::StrCat(name, " is missing"));
    return absl::OkStatus();
  }
  absl::StatusOr<client::Tensor> golden = client::ReadTensor(expected.golden);
  if (!golden.ok()) return golden.status();
  std::optional<client::Tensor> scale;
  if (expected.scale.has_value()) {
    absl::StatusOr<client::Tensor> read = client::ReadTensor(*expected.scale);
    if (!read.ok()) return read.status();
    scale = *std::move(read);
  }
  absl::StatusOr<Comparison> comparison =
      Compare(found->second, *golden, expected.tolerance, scale, verify_case.options.layout);
  if (!comparison.ok()) {
    report->mismatches.push_back(absl::StrCat(name, ": ", comparison.status().message()));
    return absl::OkStatus();
  }
  report->max_error = std::max(report->max_error, comparison->max_error);
  report->max_used_share = std::max(report->max_used_share, comparison->max_used_share);
  if (comparison->mismatches > 0) {
    report->mismatches.push_back(
        absl::StrFormat("%s: %d of %d elements outside the tolerance, the first at index %d", name,
                        comparison->mismatches, golden->elements(), comparison->first_mismatch));
  }
  return absl::OkStatus();
}

/// Runs one case. Errors: the server's or the files'; a wrong result is a mismatch in the report
/// instead.
absl::StatusOr<CaseReport> RunCase(client::Client& client, const VerifyFlags& flags,
                                   const VerifyCase& verify_case) {
  absl::StatusOr<NamedTensors> inputs = ReadInputs(verify_case);
  if (!inputs.ok()) return inputs.status();
  CaseReport report{.name = verify_case.name,
                    .op = verify_case.options.op,
                    .direction = verify_case.options.direction};
  std::vector<double> latencies;
  std::optional<OpOutcome> first;
  for (int i = 0; i < flags.repeat; ++i) {
    absl::StatusOr<OpOutcome> outcome =
        CallOp(client, verify_case.options, *inputs, flags.server.timeout, {});
    if (!outcome.ok()) return outcome.status();
    latencies.push_back(absl::ToDoubleMicroseconds(outcome->latency));
    if (!first.has_value()) {
      first = *std::move(outcome);
      continue;
    }
    for (const auto& [name, tensor] : outcome->outputs) {
      const auto before = first->outputs.find(name);
      if (before == first->outputs.end() || !SameBits(tensor, before->second)) {
        report.mismatches.push_back(
            absl::StrCat(name, ": bits of repetition ", i, " differ from the first"));
      }
    }
  }
  const client::Tensor& x = inputs->at("x");
  report.shape = absl::StrJoin(x.shape(), "x");
  report.dtype = DTypeName(x.dtype());
  report.device = first->timing.device;
  std::sort(latencies.begin(), latencies.end());
  report.latency_us = latencies[latencies.size() / 2];
  report.gb_per_s = static_cast<double>(first->bytes_moved) / 1e3 / report.latency_us;
  for (const auto& [name, expected] : verify_case.outputs) {
    absl::Status status = CompareOutput(verify_case, name, expected, first->outputs, &report);
    if (!status.ok()) return status;
  }
  return report;
}

void PrintHeader() {
  std::cout << absl::StrFormat("%-10s %-8s %-10s %-5s %10s %9s %11s %8s  %-6s %s\n", "op", "dir",
                               "shape", "dtype", "max error", "of bound", "latency us", "GB/s",
                               "device", "result");
}

void PrintRow(const CaseReport& report) {
  std::cout << absl::StrFormat("%-10s %-8s %-10s %-5s %10.2e %8.1f%% %11.1f %8.3f  %-6s %s\n",
                               OpName(report.op), DirectionName(report.direction), report.shape,
                               report.dtype, report.max_error, 100.0 * report.max_used_share,
                               report.latency_us, report.gb_per_s, report.device,
                               report.mismatches.empty() ? "ok" : "MISMATCH")
            << std::flush;
}

nlohmann::json FiniteOrText(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : "inf";
}

nlohmann::json ToJson(const CaseReport& report) {
  return {{"name", report.name},
          {"op", OpName(report.op)},
          {"direction", DirectionName(report.direction)},
          {"shape", report.shape},
          {"dtype", report.dtype},
          {"device", report.device},
          {"max_error", FiniteOrText(report.max_error)},
          {"share_of_tolerance", FiniteOrText(report.max_used_share)},
          {"latency_us", report.latency_us},
          {"gb_per_s", report.gb_per_s},
          {"mismatches", report.mismatches}};
}

ExitCode RunVerify(const VerifyFlags& flags) {
  absl::StatusOr<std::vector<VerifyCase>> cases = ReadManifest(flags.manifest);
  if (!cases.ok()) return ReportError(cases.status());
  absl::StatusOr<std::unique_ptr<client::Client>> connected = flags.server.Connect();
  if (!connected.ok()) return ReportError(connected.status());
  const bool json = flags.server.format == OutputFormat::kJson;
  if (!json) PrintHeader();
  nlohmann::json rows = nlohmann::json::array();
  size_t failed = 0;
  for (const VerifyCase& verify_case : *cases) {
    absl::StatusOr<CaseReport> report = RunCase(**connected, flags, verify_case);
    if (!report.ok()) {
      std::cerr << "normctl: case '" << verify_case.name << "' could not be run\n";
      return ReportError(report.status());
    }
    failed += report->mismatches.empty() ? 0 : 1;
    json ? rows.push_back(ToJson(*report)) : PrintRow(*report);
    for (const std::string& mismatch : report->mismatches) {
      std::cerr << "normctl: case '" << report->name << "': " << mismatch << '\n';
    }
  }
  if (json) {
    std::cout << nlohmann::json(
                     {{"cases", rows}, {"passed", cases->size() - failed}, {"failed", failed}})
                     .dump(2)
              << '\n';
  } else {
    std::cout << cases->size() - failed << " passed, " << failed << " failed\n";
  }
  return failed == 0 ? kSuccess : kFailure;
}

}  // namespace

void AddVerifyCommand(CLI::App* app, ExitCode* result) {
  CLI::App* command =
      app->add_subcommand("verify", "Run a manifest of cases and compare with golden outputs");
  auto flags = std::make_shared<VerifyFlags>();
  flags->server.AddTo(command);
  command->add_option("manifest", flags->manifest, "MANIFEST.json")->required();
  command
      ->add_option("--repeat", flags->repeat,
                   "Calls per case: the median latency is shown, bits must not differ")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  command->callback([flags, result] { *result = RunVerify(*flags); });
}

}  // namespace norm::normctl
