// Requests of every op and direction, and their way through the wire to the decoder.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/transport/request_decoder.h"
#include "tests/support/request_builder.h"

namespace norm::server {

using norm::test::F32Tensor;
using norm::test::RawTensor;
using norm::test::Zeros;
using norm::v1::NormalizeBackwardRequest;
using norm::v1::NormalizeRequest;

inline constexpr DecodeLimits kLimits = {int64_t{1} << 20};

/// A request on its way through the wire: the job borrows from `message`.
template <typename Request>
struct Decoded {
  explicit Decoded(const Request& request) {
    std::string bytes = request.SerializeAsString();
    grpc::Slice slice(bytes);
    EXPECT_TRUE(message.Parse(grpc::ByteBuffer(&slice, 1), &header).ok());
    job = DecodeRequest(header, message, kLimits);
  }

  wire::ReceivedMessage message;
  Request header;
  absl::StatusOr<std::unique_ptr<Job>> job;
};

inline NormalizeRequest RmsForward() {
  NormalizeRequest request;
  request.mutable_rms_norm();
  *request.mutable_x() = Zeros({2, 3, 4});
  *request.mutable_weight() = Zeros({4});
  return request;
}

inline NormalizeRequest LayerForward() {
  NormalizeRequest request;
  request.mutable_layer_norm()->set_normalized_dims(2);
  *request.mutable_x() = Zeros({2, 3, 4});
  *request.mutable_weight() = Zeros({3, 4});
  *request.mutable_bias() = Zeros({12});
  return request;
}

inline NormalizeRequest BatchForward() {
  NormalizeRequest request;
  request.mutable_batch_norm()->set_mode(norm::v1::BatchNorm::MODE_TRAINING);
  *request.mutable_x() = Zeros({2, 3, 4, 5});
  *request.mutable_weight() = Zeros({3});
  *request.mutable_bias() = Zeros({3});
  *request.mutable_running_mean() = Zeros({3});
  *request.mutable_running_var() = Zeros({3});
  return request;
}

inline NormalizeBackwardRequest RmsBackward() {
  NormalizeBackwardRequest request;
  request.mutable_rms_norm();
  *request.mutable_dy() = Zeros({6, 4});
  *request.mutable_x() = Zeros({6, 4});
  *request.mutable_weight() = Zeros({4});
  *request.mutable_rstd() = Zeros({6});
  return request;
}

inline NormalizeBackwardRequest LayerBackward() {
  NormalizeBackwardRequest request;
  request.mutable_layer_norm();
  *request.mutable_dy() = Zeros({2, 3, 4});
  *request.mutable_x() = Zeros({2, 3, 4});
  *request.mutable_mean() = Zeros({2, 3});
  *request.mutable_rstd() = Zeros({6});
  request.set_has_bias(true);
  return request;
}

inline NormalizeBackwardRequest BatchBackward(norm::v1::BatchNorm::Mode mode) {
  NormalizeBackwardRequest request;
  request.mutable_batch_norm()->set_mode(mode);
  *request.mutable_dy() = Zeros({2, 3, 4});
  *request.mutable_x() = Zeros({2, 3, 4});
  if (mode == norm::v1::BatchNorm::MODE_INFERENCE) {
    *request.mutable_running_mean() = Zeros({3});
    *request.mutable_running_var() = Zeros({3});
  }
  return request;
}

}  // namespace norm::server
