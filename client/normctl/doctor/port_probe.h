// Whether somebody listens at an address, and what it speaks.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace norm::normctl {

enum class PortState : uint8_t { kNotTried, kNoName, kRefused, kSilent, kOpen };
/// Told by the answer to the first bytes of an HTTP/2 connection in plain text. kNothing: the
/// connection was ended, as gRPC servers do that take TLS alone.
enum class PortSpeech : uint8_t { kUnknown, kPlainHttp2, kTls, kTextHttp, kNothing };

struct PortFacts {
  PortState state = PortState::kNotTried;
  PortSpeech speech = PortSpeech::kUnknown;
  std::string detail;  // the system's words where it is not open
};

/// `address`: host:port, or "dns:///host:port"; targets without a host and port are not tried. Takes
/// `timeout` at most for each of connecting and listening.
PortFacts ProbePort(const std::string& address, absl::Duration timeout);

}  // namespace norm::normctl
