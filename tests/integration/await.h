// Waiting for a condition that another thread or process brings about.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace norm::test {

/// Polls until `condition()` holds; false when it does not within a minute. The result does not
/// depend on how long it takes.
template <typename Condition>
bool Await(Condition condition) {
  const absl::Time give_up = absl::Now() + absl::Minutes(1);
  while (!condition()) {
    if (absl::Now() > give_up) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace norm::test
