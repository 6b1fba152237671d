// The subcommands. Each adds itself to the application; when it is chosen, it runs and stores its
// exit code.
#pragma once

#include "CLI/CLI.hpp"
#include "client/normctl/exit_code.h"

namespace norm::normctl {

void AddRmsNormCommand(CLI::App* app, ExitCode* result);
void AddLayerNormCommand(CLI::App* app, ExitCode* result);
void AddBatchNormCommand(CLI::App* app, ExitCode* result);
void AddInfoCommand(CLI::App* app, ExitCode* result);
void AddHealthCommand(CLI::App* app, ExitCode* result);
void AddDoctorCommand(CLI::App* app, ExitCode* result);
void AddVerifyCommand(CLI::App* app, ExitCode* result);
void AddBenchCommand(CLI::App* app, ExitCode* result);

}  // namespace norm::normctl
