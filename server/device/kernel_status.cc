#include "server/device/kernel_status.h"

namespace norm::server {

absl::Status ToAbslStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return absl::InvalidArgumentError(status.message());
    case StatusCode::kUnsupported:
      return absl::UnimplementedError(status.message());
    case StatusCode::kOutOfMemory:
      return absl::ResourceExhaustedError(status.message());
    case StatusCode::kCuda:
      return absl::InternalError(status.message());
  }
  return absl::InternalError(status.message());
}

}  // namespace norm::server
