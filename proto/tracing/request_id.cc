#include "proto/tracing/request_id.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"

namespace norm::tracing {

bool IsRequestId(absl::string_view text) {
  constexpr size_t kMaxLength = 128;
  return !text.empty() && text.size() <= kMaxLength &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

}  // namespace norm::tracing
