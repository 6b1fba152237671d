#include <map>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "client/normctl/commands.h"
#include "client/normctl/op_flags.h"

namespace norm::normctl {

void AddBatchNormCommand(CLI::App* app, ExitCode* result) {
  CLI::App* command =
      app->add_subcommand("batchnorm", "BatchNorm of a tensor, forward or backward");
  const std::map<std::string, BatchNormLayout> layouts = {{"nchw", BatchNormLayout::kNchw},
                                                          {"nhwc", BatchNormLayout::kNhwc}};
  auto flags = std::make_shared<OpFlags>();
  flags->options.op = Op::kBatchNorm;
  flags->options.mode = BatchNormMode::kInference;
  flags->AddTo(command);
  flags->AddInput(command, "--bias", "bias", "shift");
  flags->AddInput(command, "--running-mean", "running_mean", "running mean");
  flags->AddInput(command, "--running-var", "running_var", "running variance");
  flags->AddInput(command, "--mean", "mean",
                  "batch mean that forward returned (backward, training)");
  flags->AddOutput(command, "--mean-output", "mean", "batch mean (training)");
  flags->AddOutput(command, "--running-mean-output", "running_mean",
                   "updated running mean (training)");
  flags->AddOutput(command, "--running-var-output", "running_var",
                   "updated running variance (training)");
  flags->AddOutput(command, "--dbias-output", "dbias", "gradient of bias");
  command->add_flag_callback(
      "--training", [options = &flags->options] { options->mode = BatchNormMode::kTraining; },
      "Statistics of this batch; otherwise the running ones");
  command
      ->add_option_function<std::string>(
          "--layout",
          [options = &flags->options, layouts](const std::string& name) {
            options->layout = layouts.at(name);
          },
          "Where the channels are: nchw (default) or nhwc")
      ->check(CLI::IsMember(layouts));
  auto* momentum = command->add_option_function<double>(
      "--momentum", [options = &flags->options](const double& value) { options->momentum = value; },
      "Weight of the new value in the running statistics [0.1]");
  command
      ->add_option_function<int64_t>(
          "--batches-tracked",
          [options = &flags->options](const int64_t& count) {
            options->num_batches_tracked = count;
          },
          "Cumulative average over so many batches before this one, instead of --momentum")
      ->excludes(momentum);
  command->callback([flags, result] { *result = RunOp(*flags); });
}

}  // namespace norm::normctl
