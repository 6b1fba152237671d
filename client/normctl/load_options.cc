#include "client/normctl/load_options.h"

#include "absl/strings/str_cat.h"

namespace norm::normctl {
namespace {

// A request in flight is a thread.
constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxAttempts = 100;
constexpr int64_t kMaxRounds = 100;
constexpr double kMinDurationSeconds = 1e-3;
constexpr double kMaxSeconds = 600;
constexpr double kMaxRate = 1e6;
// Every sample is kept, and in an open loop every send delay: 56 bytes a request.
constexpr double kMaxOpenLoopRequests = 50e6;

absl::Status CheckCount(const std::string& flag, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", value, " is outside [1, ", most, "]"));
}

/// "--in-flight" beside "--connections", or the flood's.
absl::Status CheckThreads(const std::string& prefix, int64_t connections, int64_t in_flight) {
  const std::string in_flight_flag = prefix + "in-flight";
  const std::string connections_flag = prefix == "--" ? "--connections" : "--flood";
  if (absl::Status status = CheckCount(connections_flag, connections, kMaxThreads); !status.ok())
    return status;
  if (absl::Status status = CheckCount(in_flight_flag, in_flight, kMaxThreads); !status.ok())
    return status;
  if (connections * in_flight <= kMaxThreads) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      in_flight_flag, ": ", in_flight, " on each of ", connections, " ", connections_flag, " are ",
      connections * in_flight, " requests in flight, over the limit of ", kMaxThreads));
}

absl::Status CheckPairs(const LoadOptions& options) {
  if (!options.pairs) return absl::OkStatus();
  if (!options.echo.has_value()) return absl::InvalidArgumentError("--pairs: needs --echo");
  if (options.rate.has_value()) return absl::InvalidArgumentError("--pairs: excludes --rate");
  if (options.connections == 1 && options.in_flight == 1) return absl::OkStatus();
  // The echo of one would be served beside the request of another, and take threads from it.
  return absl::InvalidArgumentError(absl::StrCat("--pairs: is for one request in flight, not for ",
                                                 options.connections, " --connections x ",
                                                 options.in_flight, " --in-flight"));
}

}  // namespace

absl::Status CheckRate(const char* flag, double rate, double duration_seconds) {
  if (!(rate > 0 && rate <= kMaxRate)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", rate, " requests/s is outside (0, ", kMaxRate, "]"));
  }
  const double requests = rate * duration_seconds;
  if (requests < 1 || requests > kMaxOpenLoopRequests) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", rate, " requests/s for --duration ", duration_seconds, " s are ",
                     requests, " requests, outside [1, ", kMaxOpenLoopRequests, "]"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const LoadOptions& options) {
  if (absl::Status status = CheckThreads("--", options.connections, options.in_flight);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckCount("--attempts", options.attempts, kMaxAttempts); !status.ok())
    return status;
  if (absl::Status status = CheckCount("--rounds", options.rounds, kMaxRounds); !status.ok())
    return status;
  if (absl::Status status = CheckPairs(options); !status.ok()) return status;
  if (options.flood.has_value()) {
    if (absl::Status status =
            CheckThreads("--flood-", options.flood->connections, options.flood->in_flight);
        !status.ok()) {
      return status;
    }
    if (!options.rate.has_value())
      return absl::InvalidArgumentError("--flood: needs the --rate of the client beside it");
    if (options.echo.has_value()) return absl::InvalidArgumentError("--flood: excludes --echo");
  }
  // Negated, here and below, so that NaN is refused.
  if (!(options.warm_up_seconds >= 0 && options.warm_up_seconds <= kMaxSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat("--warm-up: ", options.warm_up_seconds,
                                                   " s is outside [0, ", kMaxSeconds, "]"));
  }
  if (!(options.duration_seconds >= kMinDurationSeconds &&
        options.duration_seconds <= kMaxSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat("--duration: ", options.duration_seconds,
                                                   " s is outside [", kMinDurationSeconds, ", ",
                                                   kMaxSeconds, "]"));
  }
  if (options.rate.has_value()) return CheckRate("--rate", *options.rate, options.duration_seconds);
  return absl::OkStatus();
}

}  // namespace norm::normctl
