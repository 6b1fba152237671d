#include "server/config/command_line.h"

#include <algorithm>
#include <fstream>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace norm::server {
namespace {

constexpr int kMaxFlagfileDepth = 8;

absl::Status Bad(absl::string_view flag, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", rule));
}

absl::Status Assign(absl::CommandLineFlag& flag, absl::string_view value) {
  std::string error;
  if (flag.ParseFrom(value, &error)) return absl::OkStatus();
  // absl's text ends in the reason of the flag's type, on a line of its own.
  const size_t reason = error.rfind("; ");
  std::string rule = reason == std::string::npos ? "cannot be read" : error.substr(reason + 2);
  std::replace(rule.begin(), rule.end(), '\n', ' ');
  absl::StripAsciiWhitespace(&rule);
  return Bad(flag.Name(),
             absl::StrCat("value '", value, "' is not valid", rule.empty() ? "" : ": ", rule));
}

class Parser {
 public:
  absl::Status ParseArguments(absl::Span<const absl::string_view> arguments, int depth) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      absl::string_view name = arguments[i];
      if (!absl::ConsumePrefix(&name, "-")) {
        return absl::InvalidArgumentError(
            absl::StrCat("unexpected argument '", arguments[i], "': every setting is a --flag"));
      }
      absl::ConsumePrefix(&name, "-");
      absl::string_view value;
      const size_t equals = name.find('=');
      const bool has_value = equals != absl::string_view::npos;
      if (has_value) {
        value = name.substr(equals + 1);
        name = name.substr(0, equals);
      }
      if (name == "help" || name == "h") {
        action_ = CommandLineAction::kShowHelp;
        continue;
      }
      if (name == "version") {
        action_ = CommandLineAction::kShowVersion;
        continue;
      }
      absl::CommandLineFlag* flag = name == "flagfile" ? nullptr : absl::FindCommandLineFlag(name);
      if (name != "flagfile" && flag == nullptr) {
        if (absl::Status status = ParseNegated(name, has_value); !status.ok()) return status;
        continue;
      }
      if (!has_value) {
        if (flag != nullptr && flag->IsOfType<bool>()) {
          value = "true";
        } else if (i + 1 < arguments.size()) {
          value = arguments[++i];
        } else {
          return Bad(name, "needs a value");
        }
      }
      absl::Status status =
          flag == nullptr ? ParseFile(std::string(value), depth) : Assign(*flag, value);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  CommandLineAction action() const { return action_; }

 private:
  static absl::Status ParseNegated(absl::string_view name, bool has_value) {
    absl::string_view positive = name;
    if (absl::ConsumePrefix(&positive, "no") && !has_value) {
      absl::CommandLineFlag* flag = absl::FindCommandLineFlag(positive);
      if (flag != nullptr && flag->IsOfType<bool>()) return Assign(*flag, "false");
    }
    return Bad(name, "there is no such flag (--help lists them)");
  }

  absl::Status ParseFile(const std::string& path, int depth) {
    if (depth >= kMaxFlagfileDepth) {
      return Bad("flagfile", absl::StrCat(path, " is nested deeper than ", kMaxFlagfileDepth));
    }
    std::ifstream file(path);
    // A directory opens, but nothing can be read from it.
    if (!file || (file.peek(), file.bad())) {
      return Bad("flagfile", absl::StrCat("cannot read '", path, "'"));
    }
    file.clear();
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      absl::StripAsciiWhitespace(&line);
      if (line.empty() || line[0] == '#') continue;
      const absl::string_view argument = line;
      if (absl::Status status = ParseArguments({argument}, depth + 1); !status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  CommandLineAction action_ = CommandLineAction::kRun;
};

}  // namespace

absl::StatusOr<CommandLineAction> SetFlags(absl::Span<const absl::string_view> arguments) {
  Parser parser;
  if (absl::Status status = parser.ParseArguments(arguments, 0); !status.ok()) return status;
  return parser.action();
}

std::string FlagsHelp(absl::string_view file) {
  std::vector<absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::EndsWith(flag->Filename(), file)) flags.push_back(flag);
  }
  std::sort(flags.begin(), flags.end(),
            [](const auto* a, const auto* b) { return a->Name() < b->Name(); });
  std::string text;
  for (const absl::CommandLineFlag* flag : flags) {
    absl::StrAppend(&text, "  --", flag->Name(), "=", flag->DefaultValue(), "\n      ",
                    flag->Help(), "\n");
  }
  absl::StrAppend(&text,
                  "  --flagfile=PATH\n      Reads flags from a file, one a line; # starts a ",
                  "comment.\n  --help, --version\n");
  return text;
}

}  // namespace norm::server
