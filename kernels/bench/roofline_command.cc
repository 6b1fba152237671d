// normbench roofline: operations and bytes of every kernel against what the card can do.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/commands.h"
#include "bench/device_session.h"
#include "bench/report.h"
#include "bench/suite.h"
#include "bench/traffic.h"

namespace norm::bench {
namespace {

using Json = nlohmann::ordered_json;

/// One large shape of each kernel: parameters are then a negligible part of the bytes.
std::vector<BenchCase> RooflineCases() {
  const Result<std::vector<BenchCase>> cases = ParseSuite(
      "rows 65536x4096 dtypes=f32,bf16\n"
      "rows 65536x4096 dtypes=f32,bf16 variants=residual\n"
      "rows 65536x4096 dtypes=bf16 directions=forward variants=fp8,fp8_row,int8\n"
      "channels 64x64x112x112 layouts=nchw dtypes=f32,bf16 weights=f32\n",
      "roofline");
  return cases.ok() ? cases.value() : std::vector<BenchCase>();
}

ExitCode RunRoofline(const MeasureOptions& options) {
  const Result<DeviceSession> opened = DeviceSession::Open(options);
  if (!opened.ok()) return Fail(opened.status().message());
  const DeviceSession& session = opened.value();
  const double tflops = session.ceilings.f32_tflops;
  const double ridge = RidgePoint(tflops, session.ceilings.copy_gbs);
  std::printf(
      "f32 peak %.1f TFLOP/s (%d SMs x %d lanes x 2 x %.3f GHz); ridge point %.1f FLOP/byte at the "
      "measured copy, %.1f at the memory's peak\n",
      tflops, session.info.sm_count,
      F32LanesPerSm(session.info.compute_major, session.info.compute_minor), session.clock_ghz,
      ridge, session.peak_gbs > 0 ? RidgePoint(tflops, session.peak_gbs) : 0.0);
  std::printf("%-46s %12s %12s %12s %14s  %s\n", "kernel", "FLOP/elem", "bytes/elem", "FLOP/byte",
              "TFLOP/s at copy", "bound by");
  const Report report = session.NewReport(options);
  Json kernels = Json::array();
  for (const BenchCase& bench_case : RooflineCases()) {
    const double flops = FlopsPerElement(bench_case);
    const double bytes = static_cast<double>(TrafficOf(bench_case).total_bytes()) /
                         static_cast<double>(ElementCount(bench_case));
    const double intensity = flops / bytes;
    const char* bound = intensity < ridge ? "memory" : "arithmetic";
    std::printf("%-46s %12.1f %12.2f %12.2f %14.2f  %s\n", CaseName(bench_case).c_str(), flops,
                bytes, intensity, intensity * session.ceilings.copy_gbs * 1e-3, bound);
    Json kernel;
    kernel["op"] = OpName(bench_case.op);
    kernel["direction"] = DirectionText(bench_case.direction);
    kernel["dtype"] = DTypeName(bench_case.dtype);
    kernel["variant"] = VariantText(bench_case.variant);
    kernel["flops_per_element"] = flops;
    kernel["bytes_per_element"] = bytes;
    kernel["flops_per_byte"] = intensity;
    kernel["bound_by"] = bound;
    kernels.push_back(kernel);
  }
  if (options.json.empty()) return kSuccess;
  Json json;
  json["device"] = report.device;
  json["date"] = report.date;
  json["commit"] = report.commit;
  json["source_hash"] = report.source_hash;
  json["copy_gbs"] = report.copy_gbs;
  json["memory_peak_gbs"] = session.peak_gbs;
  json["f32_peak_tflops"] = tflops;
  json["ridge_flops_per_byte"] = ridge;
  json["kernels"] = kernels;
  const Status written = WriteFileWhole(options.json, json.dump(1) + "\n");
  return written.ok() ? kSuccess : Fail(written.message());
}

}  // namespace

void AddRooflineCommand(CLI::App* app, ExitCode* result) {
  auto options = std::make_shared<MeasureOptions>();
  CLI::App* command = app->add_subcommand(
      "roofline", "Operations and bytes of every kernel against this card's ceilings");
  AddMeasureOptions(command, options.get());
  command->callback([options, result] { *result = RunRoofline(*options); });
}

}  // namespace norm::bench
