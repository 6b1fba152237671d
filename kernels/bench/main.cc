#include <iostream>
#include <string>

#include "CLI/CLI.hpp"
#include "bench/commands.h"

int main(int argc, char** argv) {
  CLI::App app(
      "Measures normd's kernels on this machine's GPU: speed against a copy, the ladder that leads "
      "there, and other libraries.",
      "normbench");
  app.set_version_flag("--version", NORMD_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0 success, 1 a wrong result or a device or file that cannot be used, 2 bad "
      "usage.");
  norm::bench::ExitCode result = norm::bench::kSuccess;
  norm::bench::AddKernelsCommand(&app, &result);
  norm::bench::AddLadderCommand(&app, &result);
  norm::bench::AddRooflineCommand(&app, &result);
  norm::bench::AddAccuracyCommand(&app, &result);
  norm::bench::AddScriptCommands(&app, &result);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app.exit(error);
      return norm::bench::kSuccess;
    }
    std::cerr << "normbench: " << error.what() << " (see normbench --help)\n";
    return norm::bench::kBadUsage;
  }
  return result;
}
