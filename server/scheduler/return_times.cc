#include "server/scheduler/return_times.h"

#include <algorithm>

namespace norm::server {

absl::Duration ReturnTimes::Next(absl::Time now, absl::Duration alone, absl::Duration service) {
  const absl::Duration longest = std::max(alone, std::min(kLongestOfAlone * alone, kLongest));
  const absl::Time told = std::clamp(next_, now + alone, now + longest);
  next_ = told + kServedPerReturn * service;
  return told - now;
}

}  // namespace norm::server
