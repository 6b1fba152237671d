#include <cstddef>
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/types/span.h"
#include "client/normctl/commands.h"
#include "client/normctl/load_options.h"
#include "client/normctl/load_report.h"
#include "client/normctl/load_run.h"
#include "client/normctl/server_flags.h"
#include "client/tensor_file/regular_file.h"

namespace norm::normctl {
namespace {

const std::map<std::string, Op> kOps = {{OpName(Op::kRmsNorm), Op::kRmsNorm},
                                        {OpName(Op::kLayerNorm), Op::kLayerNorm}};
const std::map<std::string, DType> kDTypes = {{DTypeName(DType::kF32), DType::kF32},
                                              {DTypeName(DType::kF16), DType::kF16},
                                              {DTypeName(DType::kBF16), DType::kBF16}};

struct BenchFlags {
  ServerFlags server;
  LoadOptions load;
  std::string json;  // file, "-" for stdout, or empty
};

void ThrowUnlessOk(const absl::Status& status) {
  if (!status.ok()) throw CLI::ValidationError(std::string(status.message()));
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  return client::WriteFile(
      path, {absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())});
}

ExitCode RunBench(const BenchFlags& flags) {
  LoadOptions options = flags.load;
  options.server = flags.server.server;
  options.timeout = flags.server.timeout;
  ThrowUnlessOk(Validate(options));
  const absl::StatusOr<LoadOutcome> outcome = RunLoad(options);
  if (!outcome.ok()) return ReportError(outcome.status());
  std::cout << (flags.json == "-" ? LoadJson(options, *outcome) : LoadTable(options, *outcome))
            << std::flush;
  if (!flags.json.empty() && flags.json != "-") {
    if (absl::Status status = WriteText(flags.json, LoadJson(options, *outcome)); !status.ok())
      return ReportError(status);
  }
  if (outcome->completed > 0) return kSuccess;
  return ReportError(
      outcome->first_error.ok()
          ? absl::DeadlineExceededError(
                "no request began within --duration: those before were not answered in time")
          : outcome->first_error);
}

}  // namespace

void AddBenchCommand(CLI::App* app, ExitCode* result) {
  CLI::App* command = app->add_subcommand(
      "bench", "Load the server with forward calls: throughput, latency percentiles, errors");
  auto flags = std::make_shared<BenchFlags>();
  LoadOptions* load = &flags->load;
  flags->server.AddConnectionTo(command);
  command
      ->add_option_function<std::string>(
          "--op", [load](const std::string& name) { load->op = kOps.at(name); },
          "What to call [rms_norm]")
      ->check(CLI::IsMember(kOps));
  command->add_option_function<std::string>(
      "--shape",
      [load](const std::string& text) {
        const absl::StatusOr<LoadShape> shape = ParseLoadShape(text);
        ThrowUnlessOk(shape.status());
        load->shape = *shape;
      },
      "ROWSxHIDDEN of x [4x4096]");
  command
      ->add_option_function<std::string>(
          "--dtype", [load](const std::string& name) { load->dtype = kDTypes.at(name); },
          "Of x [bf16]")
      ->check(CLI::IsMember(kDTypes));
  command->add_option("--connections", load->connections, "TCP connections")->capture_default_str();
  command->add_option("--in-flight", load->in_flight, "Requests in flight on each connection")
      ->capture_default_str();
  command->add_option("--rate", load->rate,
                      "Open loop: requests per second over all connections; latency counts from "
                      "when a request was meant to leave. Without it a request leaves as soon as "
                      "the one before it is answered");
  command->add_option("--warm-up", load->warm_up_seconds, "Seconds before anything is counted")
      ->capture_default_str();
  command->add_option("--duration", load->duration_seconds, "Seconds in which requests begin")
      ->capture_default_str();
  command->add_option("--json", flags->json,
                      "Write options and figures to FILE, or for - to stdout instead of the table");
  command->callback([flags, result] { *result = RunBench(*flags); });
}

}  // namespace norm::normctl
