// Flags of rmsnorm, layernorm and batchnorm, and their common run.
#pragma once

#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "client/normctl/exit_code.h"
#include "client/normctl/op_call.h"
#include "client/normctl/progress_line.h"
#include "client/normctl/server_flags.h"

namespace norm::normctl {

struct OpFlags {
  ServerFlags server;
  OpOptions options;
  std::map<std::string, std::string> inputs;   // tensor name to file reference
  std::map<std::string, std::string> outputs;  // tensor name to file reference
  std::string output;                          // y, or dx with --backward
  std::optional<DType> cast;
  ShowProgress progress = ShowProgress::kAuto;
  int64_t stream_above_mib = client::ChunkOptions().above_bytes >> 20;

  /// The flags that all three ops have.
  void AddTo(CLI::App* command);
  /// --<flag> FILE as the input tensor `name`.
  void AddInput(CLI::App* command, const std::string& flag, const std::string& name,
                const std::string& help);
  /// --<flag> FILE for the output tensor `name`.
  void AddOutput(CLI::App* command, const std::string& flag, const std::string& name,
                 const std::string& help);
};

/// Checks flags that depend on each other; throws CLI::ValidationError.
void CheckUsage(const OpFlags& flags);

/// Reads, calls, writes and reports.
ExitCode RunOp(const OpFlags& flags);

}  // namespace norm::normctl
