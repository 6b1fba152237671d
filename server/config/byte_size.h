// A number of bytes as flags spell it: "4096", "64KiB", "256MiB", "4GiB".
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace norm::server {

struct ByteSize {
  int64_t bytes = 0;
};

/// The hooks of absl::flags. Refuses negative sizes and those past 2^63.
bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error);
std::string AbslUnparseFlag(ByteSize size);

}  // namespace norm::server
