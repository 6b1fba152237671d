// The examples of README.md, compiled and run by the tests. Usage: norm_client_example HOST:PORT
#include <cmath>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "norm/client/client.h"

namespace {

absl::Status NormalizeOneTensor(const std::string& address) {
  // [begin one tensor]
  auto client = norm::client::Client::Create(address);  // connects with the first call
  if (!client.ok()) return client.status();

  const std::vector<float> x = {1, 2, 3, 4};
  auto result = (*client)->RmsNorm(
      {.x = norm::client::TensorView::Of(absl::MakeConstSpan(x), {1, 4}), .eps = 1e-6},
      absl::Seconds(5));
  if (!result.ok()) return result.status();  // the server's code and message

  auto y = result->y.ToTensor();  // in one piece; y.runs() are the bytes where they were received
  if (!y.ok()) return y.status();
  auto values = y->Values<float>();
  if (!values.ok()) return values.status();
  std::printf("y = %f %f %f %f on %s\n", (*values)[0], (*values)[1], (*values)[2], (*values)[3],
              result->timing.device.c_str());
  // [end one tensor]
  const float expected[] = {0.3651483f, 0.7302967f, 1.0954450f, 1.4605934f};
  for (int i = 0; i < 4; ++i) {
    if (std::fabs((*values)[static_cast<size_t>(i)] - expected[i]) > 1e-6f)
      return absl::InternalError("wrong result");
  }
  return absl::OkStatus();
}

absl::Status NormalizeTransposedImages(const std::string& address) {
  auto client = norm::client::Client::Create(address);
  if (!client.ok()) return client.status();
  const std::vector<float> images(2 * 3 * 4 * 4, 0.5f);
  // [begin strides]
  // NCHW images seen as NHWC, and their gradients: nothing is transposed by hand.
  const auto nhwc = norm::client::TensorView::Strided(
      norm::DType::kF32,
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(images.data()), images.size() * 4),
      /*offset=*/0, /*shape=*/{2, 4, 4, 3}, /*strides=*/{48, 4, 1, 16});
  auto gradients = (*client)->BatchNormBackward({.dy = nhwc,
                                                 .x = nhwc,
                                                 .mode = norm::BatchNormMode::kTraining,
                                                 .layout = norm::BatchNormLayout::kNhwc},
                                                absl::Seconds(5));
  // [end strides]
  return gradients.status();
}

absl::Status NormalizeManyAtOnce(const std::string& address) {
  auto client = norm::client::Client::Create(address);
  if (!client.ok()) return client.status();
  // [begin stream]
  auto stream = (*client)->OpenStream();
  std::vector<std::future<absl::StatusOr<norm::client::ForwardResult>>> results;
  for (int i = 0; i < 100; ++i) {
    const std::vector<float> row(4096, static_cast<float>(i + 1));  // copied by the call
    results.push_back(
        stream->Normalize(norm::client::LayerNormRequest{.x = norm::client::TensorView::Of(
                                                             absl::MakeConstSpan(row), {1, 4096})},
                          absl::Seconds(5)));
  }
  for (auto& result : results) {
    if (auto value = result.get(); !value.ok()) return value.status();
  }
  return stream->Finish(absl::Seconds(5));
  // [end stream]
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: norm_client_example HOST:PORT\n");
    return 2;
  }
  for (auto* example : {NormalizeOneTensor, NormalizeTransposedImages, NormalizeManyAtOnce}) {
    if (absl::Status status = example(argv[1]); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}
