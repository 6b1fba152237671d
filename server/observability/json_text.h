// Text of others in JSON.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace norm::server {

/// Appends `text` as a JSON string in one line; bytes that are no UTF-8 become U+FFFD.
void AppendJsonString(absl::string_view text, std::string* out);

/// The same in visible ASCII alone, so that no terminal obeys it.
std::string AsciiJsonString(absl::string_view text);

}  // namespace norm::server
