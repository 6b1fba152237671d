// Whether this process should get calls: one value behind grpc.health.v1, /readyz, /healthz and the
// metrics, so that they agree.
#pragma once

#include <cstdint>

namespace norm::server {

enum class ServingState : uint8_t {
  kStarting,  // the health of the devices is not known yet
  kServing,
  kDraining,  // from the first SIGTERM on: finishes what it has
  kNoDevice,  // every device is lost, draining or not
};

/// Whether calls should come: SERVING of "" and of each service, /readyz.
constexpr bool IsReady(ServingState state) { return state == ServingState::kServing; }

/// Whether a supervisor should leave the process alone: SERVING of "liveness", /healthz. What
/// finishes its work is.
constexpr bool IsLive(ServingState state) {
  return state == ServingState::kServing || state == ServingState::kDraining;
}

constexpr const char* ServingStateName(ServingState state) {
  switch (state) {
    case ServingState::kStarting:
      return "starting";
    case ServingState::kServing:
      return "serving";
    case ServingState::kDraining:
      return "draining";
    case ServingState::kNoDevice:
      return "no healthy device";
  }
  return "";
}

}  // namespace norm::server
