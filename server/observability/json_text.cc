#include "server/observability/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace norm::server {
namespace {

std::string Quoted(absl::string_view text, bool ascii) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', ascii, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void AppendJsonString(absl::string_view text, std::string* out) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  });
  plain ? absl::StrAppend(out, "\"", text, "\"") : absl::StrAppend(out, Quoted(text, false));
}

std::string AsciiJsonString(absl::string_view text) {
  std::string quoted = Quoted(text, true);
  // The one character of ASCII that is not visible and that JSON leaves as it is.
  for (size_t at = quoted.find('\x7f'); at != std::string::npos; at = quoted.find('\x7f', at)) {
    quoted.replace(at, 1, "\\u007f");
  }
  return quoted;
}

}  // namespace norm::server
