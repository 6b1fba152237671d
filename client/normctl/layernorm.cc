#include <memory>

#include "client/normctl/commands.h"
#include "client/normctl/op_flags.h"
#include "client/normctl/row_flags.h"

namespace norm::normctl {

void AddLayerNormCommand(CLI::App* app, ExitCode* result) {
  CLI::App* command =
      app->add_subcommand("layernorm", "LayerNorm of a tensor, forward or backward");
  auto flags = std::make_shared<OpFlags>();
  flags->options.op = Op::kLayerNorm;
  flags->AddTo(command);
  AddRowFlags(command, flags.get());
  flags->AddInput(command, "--bias", "bias", "shift");
  flags->AddInput(command, "--mean", "mean", "mean that forward returned (backward)");
  flags->AddOutput(command, "--mean-output", "mean", "mean (forward)");
  flags->AddOutput(command, "--dbias-output", "dbias", "gradient of bias");
  command->callback([flags, result] { *result = RunOp(*flags); });
}

}  // namespace norm::normctl
