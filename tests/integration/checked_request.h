// Random requests together with what the float64 oracle says their responses must be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "norm/kernels/op_types.h"
#include "norm/v1/normalization.pb.h"
#include "tests/support/tolerance.h"

namespace norm::test {

/// One request of any op, direction, dtype and option, drawn from a seed; and its checked response.
///
/// Threads: const use from several threads.
class CheckedRequest {
 public:
  /// x has at most `max_elements` elements, at least 64.
  CheckedRequest(uint64_t seed, int64_t max_elements);

  Direction direction() const { return direction_; }
  /// The one of `direction`; the other is empty.
  const norm::v1::NormalizeRequest& forward() const { return forward_; }
  const norm::v1::NormalizeBackwardRequest& backward() const { return backward_; }
  /// "layer_norm forward bf16 [12,3,64] seed 7".
  const std::string& label() const { return label_; }

  /// Whether the response has exactly the tensors that were asked for, each of the right dtype and
  /// shape, each value within the tolerance table.
  ::testing::AssertionResult Check(const norm::v1::NormalizeResponse& response) const;
  ::testing::AssertionResult Check(const norm::v1::NormalizeBackwardResponse& response) const;

 private:
  struct Expected {
    std::string name;
    norm::testing::Output rule;
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<double> reference;
    std::vector<double> scale;
    std::vector<double> floor;
  };
  class Builder;

  ::testing::AssertionResult CheckMessage(const google::protobuf::Message& response) const;

  Direction direction_ = Direction::kForward;
  norm::v1::NormalizeRequest forward_;
  norm::v1::NormalizeBackwardRequest backward_;
  std::string label_;
  std::vector<Expected> expected_;
};

}  // namespace norm::test
