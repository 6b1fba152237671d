#include <memory>

#include "client/normctl/commands.h"
#include "client/normctl/op_flags.h"
#include "client/normctl/row_flags.h"

namespace norm::normctl {

void AddRmsNormCommand(CLI::App* app, ExitCode* result) {
  CLI::App* command = app->add_subcommand("rmsnorm", "RMSNorm of a tensor, forward or backward");
  auto flags = std::make_shared<OpFlags>();
  flags->options.op = Op::kRmsNorm;
  flags->AddTo(command);
  AddRowFlags(command, flags.get());
  command
      ->add_option("--weight-offset", flags->options.weight_offset,
                   "Added to every weight: 1 for Gemma")
      ->capture_default_str();
  command->callback([flags, result] { *result = RunOp(*flags); });
}

}  // namespace norm::normctl
