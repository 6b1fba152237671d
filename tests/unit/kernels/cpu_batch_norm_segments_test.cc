// Segments on the CPU: each BatchNorm request of a call gets what it gets alone.
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "norm/kernels/batch_norm.h"
#include "norm/kernels/thread_pool.h"
#include "tests/support/host_tensor.h"
#include "tests/support/tensor_data.h"

namespace norm::testing {
namespace {

/// Requests of 5 channels and 7 positions that differ in batch and values.
class CpuBatchNormSegmentsTest : public ::testing::Test {
 protected:
  static constexpr int kCount = 4;
  static constexpr int64_t kChannels = 5;
  static constexpr int64_t kSpatial = 7;

  CpuBatchNormSegmentsTest() {
    for (int i = 0; i < kCount; ++i) {
      const int64_t batch = i == 2 ? 0 : 2 + i;
      const int64_t elements = batch * kChannels * kSpatial;
      const auto seed = static_cast<uint64_t>(40 + 2 * i);
      x_.emplace_back(ToBytes(DType::kF32, MakeNormal(elements, i, 1.0, DType::kF32, seed)));
      dy_.emplace_back(ToBytes(DType::kF32, MakeNormal(elements, 0.0, 1.0, DType::kF32, seed + 1)));
    }
  }

  BatchNormShape ShapeOf(int i) const {
    const auto elements = static_cast<int64_t>(x_[static_cast<size_t>(i)].size() / sizeof(float));
    return {elements / (kChannels * kSpatial), kChannels, kSpatial};
  }
  static Workspace Measure(std::vector<std::byte>& memory, size_t bytes) {
    memory.resize(bytes + kWorkspaceAlignment);
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    const size_t skip = (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
    return {memory.data() + skip, bytes};
  }

  std::vector<std::vector<std::byte>> x_;
  std::vector<std::vector<std::byte>> dy_;
  ThreadPool threads_{2};
  std::vector<std::byte> memory_;
};

TEST_F(CpuBatchNormSegmentsTest, ForwardGivesWhatEachGetsAlone) {
  std::vector<std::vector<std::byte>> together = x_;
  std::vector<std::vector<std::byte>> alone = x_;
  std::vector<BatchNormForwardArgs> segments(kCount);
  for (int i = 0; i < kCount; ++i) {
    const auto at = static_cast<size_t>(i);
    segments[at].x = x_[at].data();
    segments[at].y = together[at].data();
    segments[at].shape = ShapeOf(i);
    segments[at].eps = 1e-5 * (i + 1);
  }
  const Workspace workspace =
      Measure(memory_, cpu::BatchNormForwardSegmentsWorkspaceBytes(segments));
  ASSERT_TRUE(cpu::BatchNormForwardSegments(segments, workspace, threads_).ok());
  for (int i = 0; i < kCount; ++i) {
    const auto at = static_cast<size_t>(i);
    segments[at].y = alone[at].data();
    ASSERT_TRUE(cpu::BatchNormForward(segments[at], workspace, threads_).ok());
  }
  EXPECT_EQ(together, alone);
  EXPECT_NE(together, x_);
  segments[1].momentum = 2.0;
  const Status status = cpu::BatchNormForwardSegments(segments, workspace, threads_);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().rfind("segment 1: momentum", 0), 0u) << status.message();
}

TEST_F(CpuBatchNormSegmentsTest, BackwardGivesWhatEachGetsAlone) {
  std::vector<std::vector<std::byte>> together = x_;
  std::vector<std::vector<std::byte>> alone = x_;
  std::vector<std::vector<std::byte>> dweight(kCount, OutputBytes(DType::kF32, kChannels));
  std::vector<std::vector<std::byte>> own_dweight = dweight;
  std::vector<BatchNormBackwardArgs> segments(kCount);
  for (int i = 0; i < kCount; ++i) {
    const auto at = static_cast<size_t>(i);
    segments[at].x = x_[at].data();
    segments[at].dy = dy_[at].data();
    segments[at].dx = together[at].data();
    segments[at].dweight = dweight[at].data();
    segments[at].shape = ShapeOf(i);
  }
  const Workspace workspace =
      Measure(memory_, cpu::BatchNormBackwardSegmentsWorkspaceBytes(segments));
  ASSERT_TRUE(cpu::BatchNormBackwardSegments(segments, workspace, threads_).ok());
  for (int i = 0; i < kCount; ++i) {
    const auto at = static_cast<size_t>(i);
    segments[at].dx = alone[at].data();
    segments[at].dweight = own_dweight[at].data();
    ASSERT_TRUE(cpu::BatchNormBackward(segments[at], workspace, threads_).ok());
  }
  EXPECT_EQ(together, alone);
  EXPECT_EQ(dweight, own_dweight);
}

}  // namespace
}  // namespace norm::testing
