// Damaged requests: whatever the bytes, decoding ends in a status, and a job that comes out is
// consistent.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "server/transport/request_decoder.h"
#include "tests/support/request_builder.h"

namespace norm::server {
namespace {

using norm::test::Zeros;

/// `bytes` cut into slices at random places.
grpc::ByteBuffer InSlices(const std::string& bytes, std::mt19937_64& random) {
  std::vector<grpc::Slice> slices;
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t length = std::min<size_t>(bytes.size() - at, 1 + random() % 40);
    slices.emplace_back(bytes.substr(at, length));
    at += length;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Damage(std::string bytes, std::mt19937_64& random) {
  const int edits = static_cast<int>(random() % 4);
  for (int i = 0; i < edits && !bytes.empty(); ++i) {
    const size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 2:
        bytes.erase(at, 1 + random() % 8);
        break;
      case 3:
        bytes.insert(at, std::string(1 + random() % 8, static_cast<char>(random())));
        break;
      default:
        bytes.resize(at);
        break;
    }
  }
  return bytes;
}

/// Decodes damaged copies of `request`; returns how many still made a job.
template <typename Request>
int TryDamaged(const Request& request, uint64_t seed) {
  constexpr int kTries = 3000;
  constexpr DecodeLimits kLimits = {int64_t{1} << 16};
  std::mt19937_64 random(seed);
  const std::string good = request.SerializeAsString();
  int jobs = 0;
  for (int i = 0; i < kTries; ++i) {
    wire::ReceivedMessage message;
    Request header;
    if (!message.Parse(InSlices(Damage(good, random), random), &header).ok()) continue;
    const auto job = DecodeRequest(header, message, kLimits);
    if (!job.ok()) {
      EXPECT_FALSE(job.status().message().empty());
      continue;
    }
    ++jobs;
    const NormProblem& problem = (*job)->problem;
    int64_t outputs = 0;
    for (int r = 0; r < kTensorRoleCount; ++r) {
      const auto role = static_cast<TensorRole>(r);
      const InputTensor& input = (*job)->inputs[static_cast<size_t>(r)];
      EXPECT_EQ(input.size_bytes, problem.inputs.Has(role) ? TensorBytes(problem, role) : 0);
      int64_t bytes = 0;
      for (const auto& run : input.runs) bytes += static_cast<int64_t>(run.size());
      EXPECT_EQ(bytes, input.size_bytes);
      if (problem.outputs.Has(role)) outputs += TensorBytes(problem, role);
    }
    EXPECT_LE(outputs, kLimits.max_output_bytes);
    EXPECT_GE(problem.eps, 0.0);
    EXPECT_GE(problem.hidden_size, 1);
  }
  return jobs;
}

TEST(DecoderMutationTest, ForwardRequestsNeverMakeAnInconsistentJob) {
  norm::v1::NormalizeRequest row;
  row.mutable_layer_norm()->set_eps(1e-5);
  *row.mutable_x() = Zeros({2, 3, 4});
  *row.mutable_weight() = Zeros({4});
  *row.mutable_bias() = Zeros({4});
  row.set_return_statistics(true);
  EXPECT_GT(TryDamaged(row, 1), 100);

  norm::v1::NormalizeRequest batch;
  batch.mutable_batch_norm()->set_mode(norm::v1::BatchNorm::MODE_TRAINING);
  *batch.mutable_x() = Zeros({2, 3, 4});
  *batch.mutable_running_mean() = Zeros({3});
  *batch.mutable_running_var() = Zeros({3});
  EXPECT_GT(TryDamaged(batch, 2), 100);
}

TEST(DecoderMutationTest, BackwardRequestsNeverMakeAnInconsistentJob) {
  norm::v1::NormalizeBackwardRequest row;
  row.mutable_rms_norm()->set_weight_offset(1.0);
  *row.mutable_x() = Zeros({2, 3, 4});
  *row.mutable_dy() = Zeros({2, 3, 4});
  *row.mutable_weight() = Zeros({4});
  *row.mutable_rstd() = Zeros({2, 3});
  EXPECT_GT(TryDamaged(row, 3), 100);
}

}  // namespace
}  // namespace norm::server
