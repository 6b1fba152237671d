// The requests of one case, made before the load begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/normctl/load_case.h"
#include "client/normctl/op_call.h"
#include "norm/client/echo.h"

namespace norm::normctl {

struct PreparedRequest {
  OpRequest typed;
  client::EncodedRequest encoded;  // the same message as bytes
};

/// What the answer to a request must be: y or dx, and how many bytes all outputs have.
struct ExpectedOutput {
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;
  int64_t tensor_bytes = 0;
};

/// Threads: const use from several.
class PreparedCase {
 public:
  /// `load_case` is valid. Tensors hold small whole numbers and fractions; those of different sets
  /// differ. Errors: RESOURCE_EXHAUSTED where memory ends.
  static absl::StatusOr<PreparedCase> Make(const LoadCase& load_case);

  /// Request `ordinal` of this case: its sets in turn.
  const PreparedRequest& request(int64_t ordinal) const {
    return sets_[static_cast<size_t>(ordinal) % sets_.size()];
  }
  /// Tensor bytes of a request.
  int64_t tensor_bytes() const { return tensor_bytes_; }
  const ExpectedOutput& expected() const { return expected_; }

  /// Errors: INTERNAL naming what differs.
  absl::Status Check(const client::ForwardResult& result) const;
  absl::Status Check(const client::BackwardResult& result) const;

 private:
  absl::Status CheckMain(const client::ResultTensor& main, int64_t tensor_bytes) const;

  std::vector<PreparedRequest> sets_;
  int64_t tensor_bytes_ = 0;
  ExpectedOutput expected_;
};

/// Bytes of all tensors of a result.
int64_t TensorBytes(const client::ForwardResult& result);
int64_t TensorBytes(const client::BackwardResult& result);

}  // namespace norm::normctl
