// The servers that an address names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace norm::client {

/// kReplicas: calls may go to any of several servers, of which some may be away.
enum class TargetKind : uint8_t { kOneServer, kReplicas };

struct Targets {
  std::vector<std::string> names;  // targets of gRPC, a channel each
  TargetKind kind = TargetKind::kOneServer;
};

/// Of an address that CheckAddress accepts. A name with "dns:" may stand for several servers.
Targets SplitTargets(const std::string& address);

}  // namespace norm::client
