// normbench kernels: every case of the suite, checked and then timed.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/commands.h"
#include "bench/device_case.h"
#include "bench/device_session.h"
#include "bench/installation.h"
#include "bench/report.h"
#include "bench/restart.h"
#include "bench/suite.h"
#include "bench/traffic.h"
#include "norm/cuda/copy.h"
#include "norm/cuda/cuda_status.h"

namespace norm::bench {
namespace {

constexpr int kGraphLaunches = 200;

struct KernelsOptions {
  MeasureOptions measure;
  std::string suite;
  CaseFilter filter;
  bool list = false;
  int case_seconds = 60;
  // Of a process that goes on where another one ended.
  size_t first = 0;
  int failed_before = 0;
};

/// Times and, of a graph case, what one empty kernel costs there.
struct Measured {
  double us = 0.0;
  double copy_us = 0.0;
  double empty_us = 0.0;
};

Result<Measured> MeasureCase(DeviceSession& session, const DeviceCase& device_case) {
  const int64_t bytes = TrafficOf(device_case.bench_case()).total_bytes();
  Measured measured;
  const auto set = [](double& to, const Result<double>& from) {
    if (from.ok()) to = from.value();
    return from.status();
  };
  if (device_case.bench_case().variant != Variant::kGraph) {
    NORM_RETURN_IF_ERROR(set(measured.us, session.timer.MedianUs(device_case.LibraryCall())));
    NORM_RETURN_IF_ERROR(set(measured.copy_us, session.timer.CopyUs(bytes)));
    return measured;
  }
  NORM_RETURN_IF_ERROR(
      set(measured.us, session.timer.GraphUs(device_case.LibraryCall(), kGraphLaunches)));
  NORM_RETURN_IF_ERROR(
      set(measured.empty_us, session.timer.GraphUs(EnqueueEmptyKernel, kGraphLaunches)));
  const auto half = static_cast<size_t>(bytes / 2);
  const Result<void*> from = session.arena.Take("copy_from", bytes / 2);
  NORM_RETURN_IF_ERROR(from.status());
  const Result<void*> to = session.arena.Take("copy_to", bytes / 2);
  NORM_RETURN_IF_ERROR(to.status());
  NORM_RETURN_IF_ERROR(set(measured.copy_us, session.timer.GraphUs(
                                                 [&](cuda::StreamView stream) {
                                                   return cuda::CopyAsync(to.value(), from.value(),
                                                                          half, stream);
                                                 },
                                                 kGraphLaunches)));
  return measured;
}

void PrintHeader() {
  std::printf("%-46s %10s %8s %7s %7s %5s %9s\n", "case", "us", "GB/s", "copy", "same", "bar",
              "floor us");
}

void PrintRow(const BenchCase& bench_case, const ResultRow& row, const Measured& measured,
              const DeviceCeilings& ceilings) {
  if (bench_case.variant == Variant::kGraph) {
    const double bar = 1.5 * measured.empty_us + 1.5;
    std::printf("%-46s %10.2f    empty kernel %.2f us, bar %.2f us%s\n",
                CaseName(bench_case).c_str(), row.us, measured.empty_us, bar,
                row.us > bar ? "  BELOW BAR" : "");
    return;
  }
  const std::optional<double> bar = Bar(bench_case);
  char bar_text[16] = "";
  if (bar) std::snprintf(bar_text, sizeof(bar_text), "%.2f", *bar);
  std::printf("%-46s %10.2f %8.0f %7.3f %7.3f %5s %9.2f%s\n", CaseName(bench_case).c_str(), row.us,
              static_cast<double>(row.bytes) / (row.us * 1e3), row.share_of_copy,
              row.share_of_same_size_copy, bar_text, FloorUs(bench_case, ceilings),
              bar && row.share_of_same_size_copy < *bar ? "  BELOW BAR" : "");
}

/// What became of a run.
struct Outcome {
  int measured = 0;
  int wrong = 0;
  int skipped = 0;
  int below_bar = 0;
  int failed = 0;
};

/// The command line that goes on behind case `done`, which failed.
std::vector<std::string> ArgumentsBehind(const KernelsOptions& options, size_t done,
                                         const Outcome& outcome) {
  std::vector<std::string> arguments = {"kernels"};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {option, value});
  };
  add("--suite", options.suite);
  for (const std::string& part : options.filter.parts) add("--filter", part);
  for (const std::string& dtype : options.filter.dtypes) add("--dtype", dtype);
  add("--json", options.measure.json);
  add("--samples", std::to_string(options.measure.samples));
  add("--device", std::to_string(options.measure.device));
  add("--commit", options.measure.commit);
  add("--source-hash", options.measure.source_hash);
  add("--case-seconds", std::to_string(options.case_seconds));
  add("--first", std::to_string(done + 1));
  add("--failed-before", std::to_string(outcome.failed + outcome.wrong + 1));
  return arguments;
}

/// Not OK when the library or the device failed.
Status RunCase(DeviceSession& session, const BenchCase& bench_case, Report& report,
               Outcome& outcome) {
  Result<std::unique_ptr<DeviceCase>> prepared =
      DeviceCase::Prepare(bench_case, session.arena, session.timer.stream());
  if (!prepared.ok()) {
    const StatusCode code = prepared.status().code();
    if (code != StatusCode::kOutOfMemory && code != StatusCode::kUnsupported) {
      return prepared.status();
    }
    std::printf("%-46s skipped: %s\n", CaseName(bench_case).c_str(),
                prepared.status().message().c_str());
    ++outcome.skipped;
    return Status();
  }
  DeviceCase& device_case = *prepared.value();
  const Result<Verdict> verdict = device_case.Check(device_case.LibraryCall());
  NORM_RETURN_IF_ERROR(verdict.status());
  if (!verdict.value().right) {
    std::printf("%-46s WRONG: %s\n", CaseName(bench_case).c_str(), verdict.value().message.c_str());
    ++outcome.wrong;
    return Status();
  }
  const Result<Measured> measured = MeasureCase(session, device_case);
  NORM_RETURN_IF_ERROR(measured.status());
  ResultRow row = DescribeCase(bench_case, "normd");
  row.us = measured.value().us;
  row.share_of_copy = static_cast<double>(row.bytes) / (row.us * 1e3 * session.ceilings.copy_gbs);
  row.share_of_same_size_copy = measured.value().copy_us / row.us;
  Merge(report, row);
  if (bench_case.variant == Variant::kGraph) {
    ResultRow empty = DescribeCase(bench_case, "empty_kernel");
    empty.us = measured.value().empty_us;
    empty.bytes = 0;
    Merge(report, empty);
  }
  PrintRow(bench_case, row, measured.value(), session.ceilings);
  const std::optional<double> bar = Bar(bench_case);
  outcome.below_bar += bar && row.share_of_same_size_copy < *bar ? 1 : 0;
  ++outcome.measured;
  return Status();
}

ExitCode RunKernels(const KernelsOptions& options) {
  std::string suite = options.suite;
  if (suite.empty()) {
    const Result<std::string> installed = InstalledFile("suite.txt");
    if (!installed.ok()) return Fail(installed.status().message());
    suite = installed.value();
  }
  const Result<std::vector<BenchCase>> all = LoadSuite(suite);
  if (!all.ok()) return Fail(all.status().message());
  const std::vector<BenchCase> cases = Select(all.value(), options.filter);
  if (cases.empty()) return Fail("no case of " + suite + " fits the filter");
  if (options.list) {
    Report listed;
    for (const BenchCase& bench_case : cases) Merge(listed, DescribeCase(bench_case, ""));
    std::fputs(ToJson(listed).c_str(), stdout);
    return kSuccess;
  }
  Result<DeviceSession> session = DeviceSession::Open(options.measure);
  if (!session.ok()) return Fail(session.status().message());
  Report report = session.value().NewReport(options.measure);
  const std::string& json = options.measure.json;
  if (!json.empty() && std::filesystem::exists(json)) {
    // Rows that this run does not measure again stay, with the facts of this run above them.
    Result<Report> before = ReadReport(json);
    if (!before.ok()) return Fail(before.status().message());
    report.rows = std::move(before.value().rows);
  }
  Outcome outcome;
  outcome.failed = options.failed_before;
  if (options.first == 0) PrintHeader();
  for (size_t i = options.first; i < cases.size(); ++i) {
    const std::vector<std::string> rest = ArgumentsBehind(options, i, outcome);
    Status status;
    {
      const CaseDeadline deadline(rest, options.case_seconds);
      status = RunCase(session.value(), cases[i], report, outcome);
    }
    if (!status.ok()) {
      std::printf("%-46s FAILED: %s\n", CaseName(cases[i]).c_str(), status.message().c_str());
      if (cuda::IsSticky(status)) Restart(rest);
      ++outcome.failed;
    }
    std::fflush(stdout);
    if (json.empty()) continue;
    const Status written = WriteFileWhole(json, ToJson(report));
    if (!written.ok()) return Fail(written.message());
  }
  std::printf("%d cases measured, %d below their bar, %d skipped, %d wrong, %d failed\n",
              outcome.measured, outcome.below_bar, outcome.skipped, outcome.wrong, outcome.failed);
  return outcome.wrong + outcome.failed == 0 ? kSuccess : kFailure;
}

}  // namespace

void AddKernelsCommand(CLI::App* app, ExitCode* result) {
  auto options = std::make_shared<KernelsOptions>();
  CLI::App* command = app->add_subcommand(
      "kernels", "Checks and times every case of a suite against a copy of the same size");
  command->add_option("--suite", options->suite, "Suite file (default: the installed one)");
  command->add_option("--filter", options->filter.parts,
                      "Only cases whose name contains this; given again: all of them");
  command->add_option("--dtype", options->filter.dtypes, "Only this element type; may be repeated");
  command->add_flag("--list", options->list, "Print the cases as JSON and measure nothing");
  command->add_option("--case-seconds", options->case_seconds, "What one case may take")
      ->check(CLI::PositiveNumber);
  command->add_option("--first", options->first, "Leave out this many cases at the front");
  command->add_option("--failed-before", options->failed_before)->group("");
  AddMeasureOptions(command, &options->measure);
  command->callback([options, result] { *result = RunKernels(*options); });
}

}  // namespace norm::bench
