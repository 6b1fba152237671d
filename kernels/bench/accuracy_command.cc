// normbench accuracy: writes inputs and this library's float32 results, for a script to compare with
// PyTorch's against one float64 oracle.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bench/commands.h"
#include "bench/device_case.h"
#include "bench/device_session.h"
#include "bench/installation.h"
#include "bench/report.h"
#include "bench/suite.h"
#include "norm/cuda/copy.h"

namespace norm::bench {
namespace {

using Json = nlohmann::ordered_json;

struct AccuracyOptions {
  MeasureOptions measure;
  std::string suite;
  std::string folder;
  std::vector<std::string> filter;
  int64_t elements = int64_t{1} << 20;
};

/// The suite's float32 cases with as many rows, or images, as `elements` allow.
std::vector<BenchCase> AccuracyCases(const std::vector<BenchCase>& suite,
                                     const AccuracyOptions& options) {
  std::vector<BenchCase> cases;
  for (BenchCase bench_case : Select(suite, {options.filter, {}})) {
    if (bench_case.variant != Variant::kPlain) continue;
    bench_case.dtype = bench_case.weight_dtype = DType::kF32;
    const int64_t row = ElementCount(bench_case) / bench_case.shape[0];
    const int64_t least = bench_case.op == Op::kBatchNorm ? 2 : 1;
    bench_case.shape[0] = std::min(bench_case.shape[0], std::max(least, options.elements / row));
    if (std::find(cases.begin(), cases.end(), bench_case) == cases.end()) {
      cases.push_back(bench_case);
    }
  }
  return cases;
}

/// A tensor on the device with the name of its file.
struct NamedTensor {
  const char* name;
  const norm_device::AnyTensor& tensor;
  bool per_element;  // as x; else per channel, per hidden index or per row
};

std::vector<NamedTensor> TensorsOf(const CaseTensors& t) {
  return {{"x", t.x, true},
          {"weight", t.weight, false},
          {"bias", t.bias, false},
          {"running_mean", t.running_mean, false},
          {"running_var", t.running_var, false},
          {"dy", t.dy, true},
          {"y", t.y, true},
          {"new_running_mean", t.new_running_mean, false},
          {"new_running_var", t.new_running_var, false},
          {"dx", t.dx, true},
          {"dweight", t.dweight, false},
          {"dbias", t.dbias, false}};
}

Status WriteTensor(const std::string& path, const norm_device::AnyTensor& tensor, int64_t count,
                   cuda::StreamView stream) {
  std::vector<float> values(static_cast<size_t>(count));
  NORM_RETURN_IF_ERROR(
      cuda::CopyAsync(values.data(), tensor.data, values.size() * sizeof(float), stream));
  NORM_RETURN_IF_ERROR(stream.Synchronize());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
  file.flush();
  return file ? Status() : Status(StatusCode::kInvalidArgument, path + ": cannot be written");
}

Result<Json> RunCase(DeviceSession& session, const BenchCase& bench_case,
                     const std::string& prefix) {
  Result<std::unique_ptr<DeviceCase>> prepared =
      DeviceCase::Prepare(bench_case, session.arena, session.timer.stream());
  NORM_RETURN_IF_ERROR(prepared.status());
  DeviceCase& device_case = *prepared.value();
  const cuda::StreamView stream = session.timer.stream().view();
  NORM_RETURN_IF_ERROR(device_case.LibraryCall()(stream));
  const int64_t elements = ElementCount(bench_case);
  const int64_t parameters = bench_case.shape[1];
  Json entry;
  entry["name"] = CaseName(bench_case);
  entry["op"] = OpName(bench_case.op);
  entry["direction"] = DirectionText(bench_case.direction);
  entry["shape"] = bench_case.shape;
  entry["layout"] = LayoutText(bench_case.layout);
  entry["eps"] = kEps;
  entry["momentum"] = kMomentum;
  for (const NamedTensor& named : TensorsOf(device_case.tensors())) {
    if (named.tensor.data == nullptr) continue;
    const std::string path = prefix + "_" + named.name + ".f32";
    NORM_RETURN_IF_ERROR(
        WriteTensor(path, named.tensor, named.per_element ? elements : parameters, stream));
    entry["files"][named.name] = path;
  }
  return entry;
}

ExitCode RunAccuracy(const AccuracyOptions& options) {
  std::string suite_path = options.suite;
  if (suite_path.empty()) {
    const Result<std::string> installed = InstalledFile("suite.txt");
    if (!installed.ok()) return Fail(installed.status().message());
    suite_path = installed.value();
  }
  const Result<std::vector<BenchCase>> suite = LoadSuite(suite_path);
  if (!suite.ok()) return Fail(suite.status().message());
  Result<DeviceSession> session = DeviceSession::Open(options.measure);
  if (!session.ok()) return Fail(session.status().message());

  std::error_code error;
  const bool keep = !options.folder.empty();
  const std::filesystem::path folder = keep
                                           ? std::filesystem::path(options.folder)
                                           : std::filesystem::temp_directory_path(error) /
                                                 ("normbench-accuracy-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder, error);
  if (error) return Fail(folder.string() + ": " + error.message());

  Json manifest = Json::array();
  for (const BenchCase& bench_case : AccuracyCases(suite.value(), options)) {
    const std::string prefix = (folder / std::to_string(manifest.size())).string();
    const Result<Json> entry = RunCase(session.value(), bench_case, prefix);
    if (!entry.ok()) return Fail(CaseName(bench_case) + ": " + entry.status().message());
    manifest.push_back(entry.value());
  }
  const std::string path = (folder / "manifest.json").string();
  const Status written = WriteFileWhole(path, manifest.dump());
  if (!written.ok()) return Fail(written.message());
  std::vector<std::string> arguments = {path};
  if (!keep) arguments.push_back("--remove");
  return Fail(ExecScript("normbench_accuracy.py", arguments).message());
}

}  // namespace

void AddAccuracyCommand(CLI::App* app, ExitCode* result) {
  auto options = std::make_shared<AccuracyOptions>();
  CLI::App* command = app->add_subcommand("accuracy",
                                          "Compares float32 errors of this library and of PyTorch "
                                          "over the suite (Python with PyTorch)");
  command->add_option("--suite", options->suite, "Suite file (default: the installed one)");
  command->add_option("--filter", options->filter, "Only cases whose name contains this");
  command->add_option("--folder", options->folder, "Keep inputs and results here");
  command->add_option("--elements", options->elements, "Elements of a case at most")
      ->check(CLI::PositiveNumber);
  command->add_option("--device", options->measure.device, "CUDA device");
  command->callback([options, result] { *result = RunAccuracy(*options); });
}

}  // namespace norm::bench
