#include "bench/commands.h"

#include <cstdio>
#include <memory>
#include <vector>

#include "bench/installation.h"

namespace norm::bench {

ExitCode Fail(const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "normbench: %s\n", message.c_str());
  return kFailure;
}

void AddMeasureOptions(CLI::App* command, MeasureOptions* options) {
  command->add_option("--json", options->json,
                      "Result file, written after every case; other rows in it stay");
  command->add_option("--samples", options->samples, "Timed runs whose median counts")
      ->check(CLI::Range(1, 100000));
  command->add_option("--device", options->device, "CUDA device")->check(CLI::NonNegativeNumber);
  command->add_option("--commit", options->commit, "Commit to note in the result file");
  command->add_option("--source-hash", options->source_hash,
                      "Hash of the kernels' sources to note in the result file");
}

void AddScriptCommands(CLI::App* app, ExitCode* result) {
  struct ScriptCommand {
    const char* name;
    const char* script;
    const char* description;
    bool asks_for_cases;  // it calls this binary back
  };
  constexpr ScriptCommand kCommands[] = {
      {"plot", "normbench_plot.py", "Draws result files as SVG (Python with matplotlib)", false},
      {"peers", "normbench_peers.py",
       "Times other libraries on the same cases (Python with PyTorch)", true},
  };
  for (const ScriptCommand& entry : kCommands) {
    CLI::App* command = app->add_subcommand(entry.name, entry.description);
    command->prefix_command();
    command->set_help_flag();  // the script has its own
    command->callback([command, entry, result] {
      std::vector<std::string> arguments = command->remaining();
      if (entry.asks_for_cases) {
        const Result<std::string> binary = BinaryPath();
        if (binary.ok()) arguments.insert(arguments.end(), {"--normbench", binary.value()});
      }
      *result = Fail(ExecScript(entry.script, arguments).message());
    });
  }
}

}  // namespace norm::bench
