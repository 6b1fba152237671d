#include "client/normctl/row_flags.h"

#include <map>
#include <string>

#include "CLI/CLI.hpp"

namespace norm::normctl {

void AddRowFlags(CLI::App* command, OpFlags* flags) {
  const std::map<std::string, Rounding> roundings = {
      {"once", Rounding::kOnce}, {"normalized-first", Rounding::kNormalizedFirst}};
  flags->AddInput(command, "--residual", "residual", "a residual: x + residual is normalized");
  flags->AddInput(command, "--dresidual", "dresidual_sum",
                  "gradient that reaches residual_sum from elsewhere (backward)");
  flags->AddOutput(command, "--residual-sum-output", "residual_sum", "x + residual");
  command
      ->add_option("--normalized-dims", flags->options.normalized_dims,
                   "Trailing dimensions normalized over")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_option_function<std::string>(
          "--rounding",
          [flags, roundings](const std::string& name) {
            flags->options.rounding = roundings.at(name);
          },
          "Rounding of y: once (default), or normalized-first (HF Llama)")
      ->check(CLI::IsMember(roundings));
}

}  // namespace norm::normctl
