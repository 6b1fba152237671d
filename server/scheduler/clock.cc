#include "server/scheduler/clock.h"

#include "absl/time/clock.h"

namespace norm::server {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace

const Clock& Clock::Real() {
  static const RealClock clock;
  return clock;
}

}  // namespace norm::server
