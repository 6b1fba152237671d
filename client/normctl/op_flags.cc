#include "client/normctl/op_flags.h"

#include <iostream>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/normctl/progress_line.h"
#include "client/tensor_file/tensor_file.h"
#include "nlohmann/json.hpp"

namespace norm::normctl {
namespace {

const std::map<std::string, DType> kDTypes = {
    {"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}, {"f64", DType::kF64}};

const std::map<std::string, client::Priority> kPriorities = {
    {PriorityName(client::Priority::kInteractive), client::Priority::kInteractive},
    {PriorityName(client::Priority::kBulk), client::Priority::kBulk}};

const std::map<std::string, ShowProgress> kProgress = {{"auto", ShowProgress::kAuto},
                                                       {"always", ShowProgress::kAlways},
                                                       {"never", ShowProgress::kNever}};

/// Inputs that share the dtype of x and follow --dtype.
bool FollowsDType(const std::string& name) {
  return name == "x" || name == "dy" || name == "residual" || name == "dresidual_sum";
}

absl::StatusOr<NamedTensors> ReadInputs(const OpFlags& flags) {
  NamedTensors inputs;
  for (const auto& [name, reference] : flags.inputs) {
    absl::StatusOr<client::Tensor> tensor = client::ReadTensor(reference);
    if (tensor.ok() && flags.cast.has_value() && FollowsDType(name))
      tensor = client::Cast(*tensor, *flags.cast);
    if (!tensor.ok()) return tensor.status();
    inputs.emplace(name, *std::move(tensor));
  }
  return inputs;
}

absl::Status WriteOutputs(const OpFlags& flags, const OpOutcome& outcome) {
  client::TensorOutputs files;
  for (const auto& [name, reference] : flags.outputs) {
    const auto found = outcome.outputs.find(name);
    if (found == outcome.outputs.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the result has no ", name, " to write to ", reference));
    }
    if (absl::Status status = files.Add(reference, name, found->second); !status.ok())
      return status;
  }
  return files.Write();
}

double GigabytesPerSecond(const OpOutcome& outcome) {
  return static_cast<double>(outcome.bytes_moved) / 1e9 / absl::ToDoubleSeconds(outcome.latency);
}

void PrintJson(const OpFlags& flags, const OpOutcome& outcome) {
  nlohmann::json outputs = nlohmann::json::object();
  for (const auto& [name, tensor] : outcome.outputs) {
    outputs[name] = {{"dtype", DTypeName(tensor.dtype())}, {"shape", tensor.shape()}};
    const auto file = flags.outputs.find(name);
    if (file != flags.outputs.end()) outputs[name]["file"] = file->second;
  }
  const client::Timing& timing = outcome.timing;
  const nlohmann::json report = {{"op", OpName(flags.options.op)},
                                 {"direction", DirectionName(flags.options.direction)},
                                 {"outputs", outputs},
                                 {"latency_us", absl::ToDoubleMicroseconds(outcome.latency)},
                                 {"gb_per_s", GigabytesPerSecond(outcome)},
                                 {"device", timing.device},
                                 {"server_us",
                                  {{"decode", timing.decode_us},
                                   {"queue", timing.queue_us},
                                   {"copy_in", timing.copy_in_us},
                                   {"kernel", timing.kernel_us},
                                   {"copy_out", timing.copy_out_us},
                                   {"total", timing.total_us}}},
                                 {"batch_requests", timing.batch_requests},
                                 {"batch_rows", timing.batch_rows}};
  std::cout << report.dump(2) << '\n';
}

void PrintText(const OpFlags& flags, const OpOutcome& outcome) {
  for (const auto& [name, tensor] : outcome.outputs) {
    const auto file = flags.outputs.find(name);
    std::cout << absl::StrFormat(
        "%-13s %-4s [%s]%s\n", name, DTypeName(tensor.dtype()), absl::StrJoin(tensor.shape(), ", "),
        file == flags.outputs.end() ? "" : absl::StrCat(" -> ", file->second));
  }
  std::cout << absl::StrFormat("%s %s on %s: %.3f ms (server %.3f ms, kernel %.3f ms), %.3f GB/s\n",
                               OpName(flags.options.op), DirectionName(flags.options.direction),
                               outcome.timing.device, absl::ToDoubleMilliseconds(outcome.latency),
                               outcome.timing.total_us / 1e3, outcome.timing.kernel_us / 1e3,
                               GigabytesPerSecond(outcome));
}

}  // namespace

void OpFlags::AddTo(CLI::App* command) {
  server.AddTo(command);
  AddInput(command, "--input", "x", "x, or residual_sum for backward after a residual");
  command->get_option("--input")->required();
  AddInput(command, "--weight", "weight", "scale");
  command->add_option("--output", output, "y, or dx with --backward");
  command->add_flag_callback(
      "--backward", [this] { options.direction = Direction::kBackward; },
      "Gradients instead of y; needs --grad");
  AddInput(command, "--grad", "dy", "gradient of y");
  AddInput(command, "--rstd", "rstd",
           "rstd that forward returned (backward; recomputed otherwise)");
  AddOutput(command, "--rstd-output", "rstd", "rstd (forward)");
  AddOutput(command, "--dweight-output", "dweight", "gradient of weight");
  command->add_option_function<double>(
      "--eps", [this](const double& value) { options.eps = value; },
      "Added inside the root [op's default]");
  command
      ->add_option_function<std::string>(
          "--dtype", [this](const std::string& name) { cast = kDTypes.at(name); },
          "Convert x, residual and gradients to this dtype before sending: f32, f16, bf16, f64")
      ->check(CLI::IsMember(kDTypes));
  command
      ->add_option_function<std::string>(
          "--priority",
          [this](const std::string& name) { options.priority = kPriorities.at(name); },
          "Who goes first when requests wait on the server: interactive (default), bulk")
      ->check(CLI::IsMember(kPriorities));
  command
      ->add_option_function<std::string>(
          "--progress", [this](const std::string& name) { progress = kProgress.at(name); },
          "Progress on stderr: auto (default: on a terminal), always, never")
      ->check(CLI::IsMember(kProgress));
  command
      ->add_option("--stream-above", stream_above_mib,
                   "MiB above which tensors travel in rows over a stream")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
}

void OpFlags::AddInput(CLI::App* command, const std::string& flag, const std::string& name,
                       const std::string& help) {
  command->add_option_function<std::string>(
      flag, [this, name](const std::string& reference) { inputs[name] = reference; },
      absl::StrCat("File of ", help, ": FILE.npy or FILE.safetensors:TENSOR"));
}

void OpFlags::AddOutput(CLI::App* command, const std::string& flag, const std::string& name,
                        const std::string& help) {
  command->add_option_function<std::string>(
      flag, [this, name](const std::string& reference) { outputs[name] = reference; },
      absl::StrCat("Write ", help, " to FILE.npy or FILE.safetensors:TENSOR"));
}

void CheckUsage(const OpFlags& flags) {
  const bool backward = flags.options.direction == Direction::kBackward;
  if (backward != flags.inputs.contains("dy")) {
    throw CLI::ValidationError("--backward", "--backward and --grad come together");
  }
  for (const char* name : {"rstd", "mean", "dresidual_sum"}) {
    if (!backward && flags.inputs.contains(name)) {
      throw CLI::ValidationError("--backward",
                                 absl::StrCat("the input ", name, " is for --backward only"));
    }
  }
  for (const auto& [name, reference] : flags.inputs) {
    if (absl::Status status = client::CheckReference(reference); !status.ok())
      throw CLI::ValidationError(name, std::string(status.message()));
  }
  client::TensorOutputs outputs;
  for (const auto& [name, reference] : flags.outputs) {
    if (absl::Status status = outputs.Reserve(reference, name); !status.ok())
      throw CLI::ValidationError(name, std::string(status.message()));
  }
}

ExitCode RunOp(const OpFlags& original) {
  OpFlags flags = original;
  const bool backward = flags.options.direction == Direction::kBackward;
  if (!flags.output.empty()) flags.outputs[backward ? "dx" : "y"] = flags.output;
  CheckUsage(flags);
  flags.options.return_statistics =
      flags.outputs.contains("mean") || flags.outputs.contains("rstd");
  flags.options.gradients.weight = flags.outputs.contains("dweight");
  flags.options.gradients.bias = flags.outputs.contains("dbias");
  absl::StatusOr<NamedTensors> inputs = ReadInputs(flags);
  if (!inputs.ok()) return ReportError(inputs.status());
  client::ChunkOptions chunks;
  chunks.above_bytes = flags.stream_above_mib << 20;
  absl::StatusOr<std::unique_ptr<client::Client>> connected = flags.server.Connect(chunks);
  if (!connected.ok()) return ReportError(connected.status());
  absl::StatusOr<OpOutcome> outcome = absl::UnknownError("not called");
  {
    const auto progress = std::make_shared<client::TransferProgress>();
    const ProgressLine line(progress, flags.progress);
    outcome = CallOp(**connected, flags.options, *inputs, flags.server.timeout,
                     client::CallOptions{progress});
  }
  if (!outcome.ok()) return ReportError(outcome.status());
  if (absl::Status status = WriteOutputs(flags, *outcome); !status.ok()) return ReportError(status);
  flags.server.format == OutputFormat::kJson ? PrintJson(flags, *outcome)
                                             : PrintText(flags, *outcome);
  return kSuccess;
}

}  // namespace norm::normctl
