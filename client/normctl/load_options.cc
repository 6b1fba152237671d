#include "client/normctl/load_options.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace norm::normctl {
namespace {

// A request in flight is a thread.
constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxTensorBytes = INT32_MAX;  // the protocol's largest message
constexpr double kMinDurationSeconds = 1e-3;
constexpr double kMaxSeconds = 600;
constexpr double kMaxRate = 1e6;
// Every latency is kept, and in an open loop every send delay: 16 bytes a request.
constexpr double kMaxOpenLoopRequests = 50e6;

absl::Status CheckCount(const char* flag, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", value, " is outside [1, ", most, "]"));
}

absl::Status CheckShape(const LoadOptions& options) {
  const LoadShape& shape = options.shape;
  const auto element_bytes = static_cast<int64_t>(DTypeSize(options.dtype));
  for (const auto& [name, size] :
       {std::pair("rows", shape.rows), std::pair("hidden size", shape.hidden)}) {
    if (size < 1) {
      return absl::InvalidArgumentError(absl::StrCat("--shape: ", name, " ", size, " < 1"));
    }
  }
  if (shape.rows > kMaxTensorBytes / element_bytes / shape.hidden) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shape: ", shape.rows, "x", shape.hidden, " of ", element_bytes,
                     " bytes each is over the limit of ", kMaxTensorBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckRate(double rate, double duration_seconds) {
  if (!(rate > 0 && rate <= kMaxRate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate: ", rate, " requests/s is outside (0, ", kMaxRate, "]"));
  }
  const double requests = rate * duration_seconds;
  if (requests < 1 || requests > kMaxOpenLoopRequests) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate: ", rate, " requests/s for --duration ", duration_seconds, " s are ",
                     requests, " requests, outside [1, ", kMaxOpenLoopRequests, "]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadShape> ParseLoadShape(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('x', 1));
  LoadShape shape;
  if (!absl::SimpleAtoi(parts.first, &shape.rows) ||
      !absl::SimpleAtoi(parts.second, &shape.hidden)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shape: '", text, "' is not ROWSxHIDDEN, such as 4x4096"));
  }
  return shape;
}

absl::Status Validate(const LoadOptions& options) {
  if (absl::Status status = CheckShape(options); !status.ok()) return status;
  if (absl::Status status = CheckCount("--connections", options.connections, kMaxThreads);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckCount("--in-flight", options.in_flight, kMaxThreads);
      !status.ok()) {
    return status;
  }
  if (options.connections * options.in_flight > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("--in-flight: ", options.in_flight, " on each of ", options.connections,
                     " --connections are ", options.connections * options.in_flight,
                     " requests in flight, over the limit of ", kMaxThreads));
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
  if (options.rate.has_value()) return CheckRate(*options.rate, options.duration_seconds);
  return absl::OkStatus();
}

}  // namespace norm::normctl
