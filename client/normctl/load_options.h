// What `normctl bench` sends, how fast and for how long.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "norm/kernels/dtype.h"
#include "norm/kernels/op_types.h"

namespace norm::normctl {

struct LoadShape {
  int64_t rows = 4;
  int64_t hidden = 4096;
};

/// "4x4096". Errors: INVALID_ARGUMENT for anything but two whole numbers of 63 bits.
absl::StatusOr<LoadShape> ParseLoadShape(const std::string& text);

struct LoadOptions {
  std::string server = {};
  absl::Duration timeout = absl::Seconds(60);  // of one request, from when it is sent
  Op op = Op::kRmsNorm;                        // forward, without weight and bias
  LoadShape shape;
  DType dtype = DType::kBF16;
  int64_t connections = 1;
  int64_t in_flight = 1;  // on each connection
  // Requests per second over all connections; absent: a closed loop.
  std::optional<double> rate = std::nullopt;
  double warm_up_seconds = 1;
  double duration_seconds = 10;

  /// Bytes of x, and of y. Valid options only.
  int64_t tensor_bytes() const {
    return shape.rows * shape.hidden * static_cast<int64_t>(DTypeSize(dtype));
  }
};

/// Errors: INVALID_ARGUMENT naming the flag, the rule and the values.
absl::Status Validate(const LoadOptions& options);

}  // namespace norm::normctl
