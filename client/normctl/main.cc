#include <malloc.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/synchronization/mutex.h"
#include "client/normctl/commands.h"
#include "client/normctl/exit_code.h"
#include "client/normctl/standard_streams.h"

namespace {

/// One line for any wrong command line; help and version are no errors.
norm::normctl::ExitCode ReportUsage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {
    app.exit(error);
    return norm::normctl::kSuccess;
  }
  std::string message = error.what();
  for (char& symbol : message) symbol = symbol == '\n' ? ' ' : symbol;
  std::cerr << "normctl: " << message << " (see normctl --help)\n";
  return norm::normctl::kBadUsage;
}

/// As normd does, and for its reason (server/main.cc): messages are made of freed memory.
void KeepFreedMemory() {
  ::mallopt(M_ARENA_MAX, 4);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_TOP_PAD, 1 << 30);
}

void LeaveMutexesUnwatched() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace

int main(int argc, char** argv) {
  KeepFreedMemory();
  LeaveMutexesUnwatched();
  // What gRPC logs of a failed call stands in the call's error, which is one line.
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  norm::normctl::PrepareStandardStreams();
  CLI::App app(
      "Command line of normd: normalizes tensors in files, asks a server about itself, verifies "
      "and loads it.",
      "normctl");
  app.set_version_flag("--version", NORMD_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0 success, 1 the server or a file refused, or stdout cannot be written, 2 bad "
      "usage, 3 server unreachable.");
  norm::normctl::ExitCode result = norm::normctl::kSuccess;
  norm::normctl::AddRmsNormCommand(&app, &result);
  norm::normctl::AddLayerNormCommand(&app, &result);
  norm::normctl::AddBatchNormCommand(&app, &result);
  norm::normctl::AddInfoCommand(&app, &result);
  norm::normctl::AddHealthCommand(&app, &result);
  norm::normctl::AddDoctorCommand(&app, &result);
  norm::normctl::AddVerifyCommand(&app, &result);
  norm::normctl::AddBenchCommand(&app, &result);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    result = ReportUsage(app, error);
  }
  return norm::normctl::FinishStdout(result);
}
