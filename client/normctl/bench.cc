#include <algorithm>
#include <cstddef>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "client/normctl/commands.h"
#include "client/normctl/load_json.h"
#include "client/normctl/load_mix.h"
#include "client/normctl/load_options.h"
#include "client/normctl/load_report.h"
#include "client/normctl/load_run.h"
#include "client/normctl/load_sweep.h"
#include "client/normctl/progress_line.h"
#include "client/normctl/server_flags.h"
#include "client/tensor_file/regular_file.h"

namespace norm::normctl {
namespace {

const std::map<std::string, Op> kOps = {{OpName(Op::kRmsNorm), Op::kRmsNorm},
                                        {OpName(Op::kLayerNorm), Op::kLayerNorm},
                                        {OpName(Op::kBatchNorm), Op::kBatchNorm}};
const std::map<std::string, Direction> kDirections = {
    {DirectionName(Direction::kForward), Direction::kForward},
    {DirectionName(Direction::kBackward), Direction::kBackward}};
const std::map<std::string, DType> kDTypes = {{DTypeName(DType::kF32), DType::kF32},
                                              {DTypeName(DType::kF16), DType::kF16},
                                              {DTypeName(DType::kBF16), DType::kBF16},
                                              {DTypeName(DType::kF64), DType::kF64}};
const std::map<std::string, client::Priority> kPriorities = {
    {PriorityName(client::Priority::kInteractive), client::Priority::kInteractive},
    {PriorityName(client::Priority::kBulk), client::Priority::kBulk}};
const std::map<std::string, LoadTransport> kTransports = {
    {LoadTransportName(LoadTransport::kUnary), LoadTransport::kUnary},
    {LoadTransportName(LoadTransport::kStream), LoadTransport::kStream}};
const std::map<std::string, EchoSize> kEchoSizes = {
    {EchoSizeName(EchoSize::kSame), EchoSize::kSame},
    {EchoSizeName(EchoSize::kEmpty), EchoSize::kEmpty}};

struct BenchFlags {
  ServerFlags server;
  LoadOptions load;
  bool sweep = false;
  std::vector<double> rates;  // of a sweep
  std::string echo;           // "same", "empty" or empty
  int64_t flood = 0;          // connections; 0: none
  LoadFlood flooding;         // how, where there are some
  std::string json;           // file, "-" for stdout, or empty
};

void ThrowUnlessOk(const absl::Status& status) {
  if (!status.ok()) throw CLI::ValidationError(std::string(status.message()));
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  return client::WriteFile(
      path, {absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())});
}

/// To stdout the table, or the JSON where the file is "-"; to another file the JSON.
ExitCode Publish(const BenchFlags& flags, const std::string& table, const std::string& json) {
  std::cout << (flags.json == "-" ? json : table) << std::flush;
  if (flags.json.empty() || flags.json == "-") return kSuccess;
  if (absl::Status status = WriteText(flags.json, json); !status.ok()) return ReportError(status);
  return kSuccess;
}

ExitCode RunOnce(const BenchFlags& flags, const LoadOptions& options, LoadSession& session,
                 LoadProgress& progress) {
  const ServerIdentity server{session.server_version(), session.devices()};
  absl::StatusOr<LoadResult> result = absl::UnknownError("not run");
  {
    const ProgressLine line([&progress](absl::Duration) { return progress.Describe(absl::Now()); });
    result = session.Run(options.rate, "", progress);
  }
  if (!result.ok()) return ReportError(result.status());
  const ExitCode published =
      Publish(flags, LoadTable(options, server, *result), LoadJson(options, server, *result));
  if (published != kSuccess || result->load.all.counts.completed > 0) return published;
  return ReportError(
      result->load.first_error.ok()
          ? absl::DeadlineExceededError(
                "no request began within --duration: those before were not answered in time")
          : result->load.first_error);
}

ExitCode RunRates(const BenchFlags& flags, const LoadOptions& options, LoadSession& session,
                  LoadProgress& progress) {
  const ServerIdentity server{session.server_version(), session.devices()};
  absl::StatusOr<SweepResult> result = absl::UnknownError("not run");
  {
    const ProgressLine line([&progress](absl::Duration) { return progress.Describe(absl::Now()); });
    result = RunSweep(session, options, flags.rates, progress);
  }
  if (!result.ok()) return ReportError(result.status());
  return Publish(flags, SweepTable(options, server, *result), SweepJson(options, server, *result));
}

ExitCode RunBench(const BenchFlags& original) {
  BenchFlags flags = original;
  LoadOptions& options = flags.load;
  options.server = flags.server.server;
  options.client_options = flags.server.Options();
  options.timeout = flags.server.timeout;
  if (!flags.echo.empty()) options.echo = kEchoSizes.at(flags.echo);
  if (!options.mix.empty()) {
    absl::StatusOr<std::vector<LoadCase>> cases = ReadLoadMix(options.mix);
    if (!cases.ok()) return ReportError(cases.status());
    options.cases = *std::move(cases);
  } else if (absl::Status status = Validate(options.cases[0]); !status.ok()) {
    throw CLI::ValidationError(absl::StrCat("--", status.message()));
  }
  if (flags.flood != 0) {
    options.flood = flags.flooding;
    options.flood->connections = flags.flood;
    if (!options.flood->mix.empty()) {
      absl::StatusOr<std::vector<LoadCase>> cases = ReadLoadMix(options.flood->mix);
      if (!cases.ok()) return ReportError(cases.status());
      options.flood->cases = *std::move(cases);
    }
  }
  ThrowUnlessOk(Validate(options));
  std::sort(flags.rates.begin(), flags.rates.end());
  for (const double rate : flags.rates)
    ThrowUnlessOk(CheckRate("--rates", rate, options.duration_seconds));
  absl::StatusOr<std::unique_ptr<LoadSession>> session = LoadSession::Open(options);
  if (!session.ok()) return ReportError(session.status());
  LoadProgress progress;
  return flags.sweep ? RunRates(flags, options, **session, progress)
                     : RunOnce(flags, options, **session, progress);
}

/// --name WORD, one of `words`.
template <typename Value>
CLI::Option* AddWord(CLI::App* command, const std::string& name,
                     const std::map<std::string, Value>& words, Value* value,
                     const std::string& help) {
  return command
      ->add_option_function<std::string>(
          name, [&words, value](const std::string& word) { *value = words.at(word); }, help)
      ->check(CLI::IsMember(words));
}

void AddWhat(CLI::App* command, LoadOptions* load) {
  LoadCase* load_case = &load->cases[0];
  CLI::Option* mix = command->add_option("--mix", load->mix,
                                         "File of what to call, a case a line: op=... shape=... "
                                         "dtype=... and more (README.md)");
  AddWord(command, "--op", kOps, &load_case->op, "What to call [rms_norm]")->excludes(mix);
  AddWord(command, "--direction", kDirections, &load_case->direction, "[forward]")->excludes(mix);
  command
      ->add_option_function<std::string>(
          "--shape",
          [load_case](const std::string& text) {
            const absl::StatusOr<std::vector<int64_t>> shape = ParseShape(text);
            if (!shape.ok())
              throw CLI::ValidationError(absl::StrCat("--", shape.status().message()));
            load_case->shape = *shape;
          },
          "Sizes of x joined by x [4x4096]")
      ->excludes(mix);
  AddWord(command, "--dtype", kDTypes, &load_case->dtype, "Of x [bf16]")->excludes(mix);
  AddWord(command, "--priority", kPriorities, &load_case->priority,
          "Who goes first when requests wait on the server: interactive or bulk [interactive]")
      ->excludes(mix);
}

void AddHow(CLI::App* command, LoadOptions* load) {
  AddWord(command, "--transport", kTransports, &load->transport,
          "unary: a call for each request; stream: one NormalizeStream on each connection [unary]");
  command->add_option("--connections", load->connections, "TCP connections")->capture_default_str();
  command->add_option("--in-flight", load->in_flight, "Requests in flight on each connection")
      ->capture_default_str();
  command->add_option("--warm-up", load->warm_up_seconds, "Seconds before anything is counted")
      ->capture_default_str();
  command->add_option("--duration", load->duration_seconds, "Seconds in which requests begin")
      ->capture_default_str();
}

}  // namespace

void AddBenchCommand(CLI::App* app, ExitCode* result) {
  CLI::App* command = app->add_subcommand(
      "bench", "Load the server: throughput, latency percentiles and stages, errors");
  auto flags = std::make_shared<BenchFlags>();
  LoadOptions* load = &flags->load;
  flags->server.AddConnectionTo(command);
  command
      ->add_option("--attempts", load->attempts,
                   "Tries of a request that ends in UNAVAILABLE; retried ones are counted apart")
      ->capture_default_str();
  AddWhat(command, load);
  AddHow(command, load);
  CLI::Option* rate = command->add_option(
      "--rate", load->rate,
      "Open loop: requests per second over all connections; latency counts from when a request was "
      "meant to leave. Without it a request leaves as soon as the one before it is answered");
  CLI::Option* sweep = command->add_flag(
      "--sweep", flags->sweep, "A closed loop, then open loops from 0.1 to 1.1 of its requests/s");
  sweep->excludes(rate);
  command->add_option("--rates", flags->rates, "Requests per second of a sweep: R1,R2,...")
      ->delimiter(',')
      ->needs(sweep);
  CLI::Option* echo =
      command
          ->add_flag("--echo{same}", flags->echo,
                     "In turn with the requests, the server echoes messages of the same sizes "
                     "(same) or without bytes (empty): the floor")
          ->check(CLI::IsMember(kEchoSizes));
  CLI::Option* rounds = command
                            ->add_option("--rounds", load->rounds,
                                         "Parts of --duration: echoes and requests, each of them "
                                         "with its warm-up")
                            ->capture_default_str()
                            ->needs(echo);
  command
      ->add_flag("--pairs", load->pairs,
                 "Each request with its echo right before or after it, and how much longer it took")
      ->needs(echo)
      ->excludes(rate)
      ->excludes(sweep)
      ->excludes(rounds);
  CLI::Option* flood = command->add_option(
      "--flood", flags->flood,
      "Connections of a second client that floods the server in a closed loop: the requests are "
      "measured alone, then beside it");
  flood->needs(rate)->excludes(sweep);
  command
      ->add_option("--flood-in-flight", flags->flooding.in_flight,
                   "Its requests in flight on each connection")
      ->capture_default_str()
      ->needs(flood);
  command
      ->add_option("--flood-mix", flags->flooding.mix, "File of its cases [those of the requests]")
      ->needs(flood);
  command->add_option("--json", flags->json,
                      "Write options and figures to FILE, or for - to stdout instead of the table");
  command->callback([flags, result] { *result = RunBench(*flags); });
}

}  // namespace norm::normctl
