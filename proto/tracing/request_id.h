// The name by which client and server speak of one call.
#pragma once

#include "absl/strings/string_view.h"

namespace norm::tracing {

/// Metadata key, in requests and in responses.
inline constexpr char kRequestId[] = "x-request-id";

/// 1 to 128 visible ASCII characters: what stands in a log line as it is.
bool IsRequestId(absl::string_view text);

}  // namespace norm::tracing
