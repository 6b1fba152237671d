// The subcommands of normbench.
#pragma once

#include <string>

#include "CLI/CLI.hpp"

namespace norm::bench {

enum ExitCode : int {
  kSuccess = 0,
  kFailure = 1,   // a wrong result, a device that cannot run this build, a file that cannot be used
  kBadUsage = 2,  // the command line is wrong
};

/// Options of every measuring subcommand.
struct MeasureOptions {
  std::string json;  // empty: none
  std::string commit = "unknown";
  std::string source_hash = "unknown";
  int device = 0;
  int samples = 21;
};
void AddMeasureOptions(CLI::App* command, MeasureOptions* options);

/// Each adds its subcommand to `app`; running it sets `*result`.
void AddKernelsCommand(CLI::App* app, ExitCode* result);
void AddLadderCommand(CLI::App* app, ExitCode* result);
void AddRooflineCommand(CLI::App* app, ExitCode* result);
void AddAccuracyCommand(CLI::App* app, ExitCode* result);
/// plot and peers: Python scripts that stand beside the binary.
void AddScriptCommands(CLI::App* app, ExitCode* result);

/// Prints "normbench: <message>" on stderr and returns kFailure.
ExitCode Fail(const std::string& message);

}  // namespace norm::bench
