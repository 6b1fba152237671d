// A client beside a fake server that echoes, and floats out of what either has seen.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "norm/client/client.h"
#include "tests/unit/client/fake_server.h"

namespace norm::client {

inline constexpr absl::Duration kTimeout = absl::Seconds(30);

inline std::vector<float> Floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline std::vector<float> Floats(const ResultTensor& tensor) {
  EXPECT_EQ(tensor.dtype(), DType::kF32);
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  tensor.CopyTo(reinterpret_cast<std::byte*>(values.data()));
  return values;
}

/// Answers with y = x.
inline grpc::Status EchoX(grpc::ServerContext&, const v1::NormalizeRequest& request,
                          v1::NormalizeResponse& response) {
  *response.mutable_y() = request.x();
  return grpc::Status::OK;
}

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() { server_.on_forward = EchoX; }

  std::unique_ptr<Client> Connect(const ClientOptions& options = {}) {
    return *Client::Create(server_.address(), options);
  }

  FakeServer server_;
  const std::vector<float> values_ = {1, 2, 3, 4, 5, 6};
  const TensorView x_ = TensorView::Of(absl::MakeConstSpan(values_), {2, 3});
};

}  // namespace norm::client
