#include "server/config/byte_size.h"

#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace norm::server {
namespace {

constexpr std::pair<const char*, int64_t> kUnits[] = {
    {"GiB", int64_t{1} << 30}, {"MiB", int64_t{1} << 20}, {"KiB", int64_t{1} << 10}};

}  // namespace

bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error) {
  int64_t unit = 1;
  for (const auto& [suffix, bytes] : kUnits) {
    if (absl::ConsumeSuffix(&text, suffix)) {
      unit = bytes;
      break;
    }
  }
  int64_t count = 0;
  if (!absl::SimpleAtoi(text, &count) || count < 0 ||
      count > std::numeric_limits<int64_t>::max() / unit) {
    *error = "a size is a number of bytes, or of KiB, MiB or GiB: 4096, 64KiB, 256MiB, 4GiB";
    return false;
  }
  size->bytes = count * unit;
  return true;
}

std::string AbslUnparseFlag(ByteSize size) {
  for (const auto& [suffix, bytes] : kUnits) {
    if (size.bytes >= bytes && size.bytes % bytes == 0) {
      return absl::StrCat(size.bytes / bytes, suffix);
    }
  }
  return absl::StrCat(size.bytes);
}

}  // namespace norm::server
