// Result of a kernels-library call. Standard library only; becomes absl::Status once, in
// server/device.
#pragma once

#include <string>
#include <utility>

namespace norm {

enum class StatusCode {
  kOk,
  kInvalidArgument,  // the arguments contradict each other or the contract
  kUnsupported,      // well formed, but no implementation takes it
  kOutOfMemory,      // the device or the host refused an allocation
  kCuda,             // the CUDA runtime refused a call
};

/// A code, the CUDA error behind it (0 when there is none) and a message that names field, rule and
/// both values.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, int cuda_error = 0)
      : code_(code), cuda_error_(cuda_error), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  int cuda_error() const { return cuda_error_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  int cuda_error_ = 0;
  std::string message_;
};

}  // namespace norm

/// Returns the Status from the enclosing function when it is not OK.
#define NORM_RETURN_IF_ERROR(expression)                                  \
  do {                                                                    \
    if (::norm::Status norm_status_ = (expression); !norm_status_.ok()) { \
      return norm_status_;                                                \
    }                                                                     \
  } while (false)
