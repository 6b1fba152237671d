// The status page, as status_page.html has it.
#pragma once

#include "absl/strings/string_view.h"

namespace norm::server {

/// HTML without anything of elsewhere. Each NONCE in it stands for that of the reply's
/// Content-Security-Policy.
extern const absl::string_view kStatusPage;

}  // namespace norm::server
