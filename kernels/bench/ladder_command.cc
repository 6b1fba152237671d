// normbench ladder: every rung beside the shipped kernel.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/commands.h"
#include "bench/device_case.h"
#include "bench/device_session.h"
#include "bench/kernel_facts.h"
#include "bench/ladder/rungs.h"
#include "bench/report.h"

namespace norm::bench {
namespace {

using Json = nlohmann::ordered_json;

struct LadderOptions {
  MeasureOptions measure;
  std::vector<std::string> filter;
};

/// A line of the ladder before it is measured.
struct Contender {
  std::string id;
  std::string name;
  std::string changed;
  Enqueue work;
};

struct LadderRun {
  DeviceSession& session;
  std::vector<std::string> lines;  // JSON, one a measurement
  int wrong = 0;

  Status Measure(DeviceCase& device_case, const Contender& contender);
  Status Climb(const BenchCase& bench_case);
};

Status LadderRun::Measure(DeviceCase& device_case, const Contender& contender) {
  const Result<Verdict> verdict = device_case.Check(contender.work);
  NORM_RETURN_IF_ERROR(verdict.status());
  const std::string label = contender.id + " " + contender.name;
  if (!verdict.value().right) {
    std::printf("  %-28s WRONG: %s\n", label.c_str(), verdict.value().message.c_str());
    ++wrong;
    return Status();
  }
  const Result<double> us = session.timer.MedianUs(contender.work);
  NORM_RETURN_IF_ERROR(us.status());
  ResultRow row = DescribeCase(device_case.bench_case(), "");
  const Result<double> copy_us = session.timer.CopyUs(row.bytes);
  NORM_RETURN_IF_ERROR(copy_us.status());
  const double gbs = static_cast<double>(row.bytes) / (us.value() * 1e3);
  std::string registers = "-";
  std::string shared = "-";
  std::string occupancy = "-";
  const Result<std::vector<KernelFacts>> kernels =
      KernelsOf(contender.work, session.timer.stream().view());
  if (kernels.ok()) {
    registers = JoinRegisters(kernels.value());
    shared = JoinSharedBytes(kernels.value());
    occupancy = JoinOccupancy(kernels.value());
  }
  std::printf("  %-28s %10.2f %8.0f %7.3f %7.3f %9s %13s %8s  %s\n", label.c_str(), us.value(), gbs,
              gbs / session.ceilings.copy_gbs, copy_us.value() / us.value(), registers.c_str(),
              shared.c_str(), occupancy.c_str(), contender.changed.c_str());
  Json json;
  json["id"] = contender.id;
  json["name"] = contender.name;
  json["changed"] = contender.changed;
  json["op"] = row.op;
  json["direction"] = row.direction;
  json["dtype"] = row.dtype;
  json["shape"] = row.shape;
  json["layout"] = row.layout;
  json["variant"] = row.variant;
  json["us"] = static_cast<double>(static_cast<int64_t>(us.value() * 1000 + 0.5)) / 1000;
  json["bytes"] = row.bytes;
  json["share_of_copy"] = gbs / session.ceilings.copy_gbs;
  json["share_of_same_size_copy"] = copy_us.value() / us.value();
  json["registers"] = registers;
  json["shared_bytes"] = shared;
  json["occupancy_percent"] = occupancy;
  lines.push_back(json.dump());
  return Status();
}

Status LadderRun::Climb(const BenchCase& bench_case) {
  Result<std::unique_ptr<DeviceCase>> prepared = DeviceCase::Prepare(
      bench_case, session.arena, session.timer.stream(), WrittenStatistics::kNone);
  NORM_RETURN_IF_ERROR(prepared.status());
  DeviceCase& device_case = *prepared.value();
  std::printf("\n%s\n  %-28s %10s %8s %7s %7s %9s %13s %8s  %s\n", CaseName(bench_case).c_str(),
              "rung", "us", "GB/s", "copy", "same", "registers", "shared bytes", "occup. %",
              "what it changes");
  for (const Rung& rung : AllRungs()) {
    if (!Fits(rung, bench_case)) continue;
    const Result<Enqueue> work = rung.work(device_case, session.arena);
    NORM_RETURN_IF_ERROR(work.status());
    NORM_RETURN_IF_ERROR(Measure(device_case, {rung.id, rung.name, rung.changed, work.value()}));
  }
  return Measure(device_case,
                 {"normd", "shipped", "what the library runs", device_case.LibraryCall()});
}

Status WriteLadder(const LadderRun& run, const MeasureOptions& options) {
  const Report report = run.session.NewReport(options);
  std::string text = "{\"device\": " + Json(report.device).dump() +
                     ",\n \"date\": " + Json(report.date).dump() +
                     ",\n \"commit\": " + Json(report.commit).dump() +
                     ",\n \"source_hash\": " + Json(report.source_hash).dump() +
                     ",\n \"copy_gbs\": " + Json(report.copy_gbs).dump() + ",\n \"rungs\": [";
  const char* separator = "\n  ";
  for (const std::string& line : run.lines) {
    text += separator + line;
    separator = ",\n  ";
  }
  return WriteFileWhole(options.json, text + "\n]}\n");
}

ExitCode RunLadder(const LadderOptions& options) {
  Result<DeviceSession> session = DeviceSession::Open(options.measure);
  if (!session.ok()) return Fail(session.status().message());
  LadderRun run = {session.value(), {}, 0};
  const std::vector<BenchCase> cases = Select(LadderCases(), {options.filter, {}});
  if (cases.empty()) return Fail("no shape of the ladder fits the filter");
  for (const BenchCase& bench_case : cases) {
    const Status status = run.Climb(bench_case);
    if (!status.ok()) return Fail(CaseName(bench_case) + ": " + status.message());
    std::fflush(stdout);
    if (options.measure.json.empty()) continue;
    const Status written = WriteLadder(run, options.measure);
    if (!written.ok()) return Fail(written.message());
  }
  return run.wrong == 0 ? kSuccess : kFailure;
}

}  // namespace

void AddLadderCommand(CLI::App* app, ExitCode* result) {
  auto options = std::make_shared<LadderOptions>();
  CLI::App* command = app->add_subcommand(
      "ladder", "Checks and times every rung of the kernel ladder beside the shipped kernel");
  command->add_option("--filter", options->filter, "Only shapes whose case name contains this");
  AddMeasureOptions(command, &options->measure);
  command->callback([options, result] { *result = RunLadder(*options); });
}

}  // namespace norm::bench
