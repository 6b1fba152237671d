// Sets absl::flags from a command line, with errors instead of exits.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace norm::server {

enum class CommandLineAction { kRun, kShowHelp, kShowVersion };

/// Understands --name=value, --name value, --name and --noname for switches, --help, --version and
/// --flagfile=path (one flag a line, # comments, may name further files). Later settings win.
/// absl's own parser is not used since it exits with its own code on the first mistake. Errors:
/// INVALID_ARGUMENT in one line that names the flag, the rule and the value.
absl::StatusOr<CommandLineAction> SetFlags(absl::Span<const absl::string_view> arguments);

/// The flags of the file whose name ends in `file`, with their defaults and meaning, for --help.
std::string FlagsHelp(absl::string_view file);

}  // namespace norm::server
