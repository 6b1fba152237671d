// What `normctl bench` sends, how fast and for how long.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/normctl/load_case.h"
#include "norm/client/options.h"

namespace norm::normctl {

/// Calls of their own, or all requests of a connection on one NormalizeStream.
enum class LoadTransport { kUnary, kStream };
/// "unary", "stream".
constexpr const char* LoadTransportName(LoadTransport transport) {
  return transport == LoadTransport::kUnary ? "unary" : "stream";
}

/// Messages of an echo: as many bytes as the requests and their responses have, or none.
enum class EchoSize { kSame, kEmpty };
/// "same", "empty".
constexpr const char* EchoSizeName(EchoSize size) {
  return size == EchoSize::kSame ? "same" : "empty";
}

/// A second client that takes all it gets: a closed loop on connections of its own.
struct LoadFlood {
  int64_t connections = 1;
  int64_t in_flight = 8;             // on each connection
  std::string mix = {};              // the file that its cases come from, if any
  std::vector<LoadCase> cases = {};  // without a mix those of the load
};

struct LoadOptions {
  std::string server = {};
  client::ClientOptions client_options = {};
  absl::Duration timeout = absl::Seconds(60);  // of one request, from when it is sent, all tries
  int64_t attempts = 1;                        // tries of a request that ends in UNAVAILABLE
  std::string mix = {};                        // the file that cases come from, if any
  std::vector<LoadCase> cases = {LoadCase()};
  LoadTransport transport = LoadTransport::kUnary;
  std::optional<EchoSize> echo = std::nullopt;
  int64_t rounds = 2;  // of echoes and requests: parts of the duration
  bool pairs = false;  // each request beside an echo instead, one in flight
  int64_t connections = 1;
  int64_t in_flight = 1;  // on each connection
  // Requests per second over all connections; absent: a closed loop.
  std::optional<double> rate = std::nullopt;
  // Open loops only: measured alone, and again beside it.
  std::optional<LoadFlood> flood = std::nullopt;
  double warm_up_seconds = 1;
  double duration_seconds = 10;
};

/// Errors: INVALID_ARGUMENT naming the flag, the rule and the values. Cases are checked on their
/// own.
absl::Status Validate(const LoadOptions& options);

/// The part of Validate that the rate alone breaks.
absl::Status CheckRate(const char* flag, double rate, double duration_seconds);

}  // namespace norm::normctl
