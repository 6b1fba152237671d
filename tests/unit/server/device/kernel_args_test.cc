#include "server/device/kernel_args.h"

#include <gtest/gtest.h>

#include "server/device/kernel_status.h"
#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

using Role = TensorRole;

/// A distinct fake address per role and way.
TensorPointers Distinct() {
  static std::byte storage[2 * kTensorRoleCount];
  TensorPointers pointers;
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    pointers.inputs[i] = &storage[i];
    pointers.outputs[i] = &storage[kTensorRoleCount + i];
  }
  return pointers;
}

template <typename Args>
using Segments = std::span<const Args>;

struct NameOf {
  const char* operator()(Segments<RmsNormForwardArgs>) const { return "rms_norm forward"; }
  const char* operator()(Segments<RmsNormBackwardArgs>) const { return "rms_norm backward"; }
  const char* operator()(Segments<LayerNormForwardArgs>) const { return "layer_norm forward"; }
  const char* operator()(Segments<LayerNormBackwardArgs>) const { return "layer_norm backward"; }
  const char* operator()(Segments<BatchNormForwardArgs>) const { return "batch_norm forward"; }
  const char* operator()(Segments<BatchNormBackwardArgs>) const { return "batch_norm backward"; }
};

/// Addresses that Validate accepts: enough room for each tensor of the small problems below.
TensorPointers Apart() {
  alignas(16) static std::byte storage[2 * kTensorRoleCount][256];
  TensorPointers pointers;
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    pointers.inputs[i] = storage[i];
    pointers.outputs[i] = storage[kTensorRoleCount + i];
  }
  return pointers;
}

/// Inference takes no batch statistics, RMSNorm no residual without its sum.
NormProblem SmallProblem(Op op, Direction direction) {
  NormProblem problem = op == Op::kBatchNorm ? test::BatchNormInferenceProblem({2, 3, 2})
                                             : test::RmsNormProblem(2, 3);
  problem.op = op;
  problem.direction = direction;
  problem.batch_norm_mode = BatchNormMode::kTraining;
  return problem;
}

TEST(KernelArgsTest, EachOpAndDirectionGetsItsType) {
  for (const Op op : {Op::kRmsNorm, Op::kLayerNorm, Op::kBatchNorm}) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      KernelCall call;
      EXPECT_TRUE(call.empty());
      TensorPointers at = Apart();
      at.inputs[static_cast<size_t>(Role::kRunningVar)] = nullptr;  // not in a backward of training
      at.inputs[static_cast<size_t>(Role::kRunningMean)] = nullptr;
      at.outputs[static_cast<size_t>(Role::kRunningVar)] = nullptr;
      at.outputs[static_cast<size_t>(Role::kRunningMean)] = nullptr;
      const Status added = call.Add(SmallProblem(op, direction), at);
      EXPECT_TRUE(added.ok()) << added.message();
      EXPECT_FALSE(call.empty());
      EXPECT_EQ(call.Run(NameOf{}), std::string(OpName(op)) + " " + DirectionName(direction));
      call.Clear();
      EXPECT_TRUE(call.empty());
    }
  }
}

struct CountOf {
  template <typename Args>
  size_t operator()(std::span<const Args> segments) const {
    return segments.size();
  }
};

TEST(KernelArgsTest, ARefusedSegmentIsLeftOut) {
  KernelCall call;
  NormProblem problem = test::RmsNormProblem(2, 3);
  EXPECT_TRUE(call.Add(problem, Apart()).ok());
  problem.eps = -1.0;
  EXPECT_EQ(call.Add(problem, Apart()).code(), StatusCode::kInvalidArgument);
  problem.eps = 0.0;
  EXPECT_TRUE(call.Add(problem, Apart()).ok());
  EXPECT_EQ(call.Run(CountOf{}), 2);
}

struct Batches {
  template <typename Args>
  std::vector<int64_t> operator()(std::span<const Args> segments) const {
    std::vector<int64_t> batches;
    if constexpr (requires { segments[0].shape; }) {
      for (const Args& segment : segments) {
        batches.push_back(segment.shape.batch);
      }
    }
    return batches;
  }
};

TEST(KernelArgsTest, BatchNormSegmentsOfEqualBatchAreNeighbours) {
  KernelCall call;
  for (const int64_t batch : {2, 1, 2, 1}) {
    TensorPointers at = Apart();
    at.outputs[static_cast<size_t>(Role::kMean)] = nullptr;
    at.outputs[static_cast<size_t>(Role::kRunningMean)] = nullptr;
    at.outputs[static_cast<size_t>(Role::kRunningVar)] = nullptr;
    const Status added = call.Add(test::BatchNormInferenceProblem({batch, 3, 2}), at);
    EXPECT_TRUE(added.ok()) << added.message();
  }
  call.GroupAlike();
  EXPECT_EQ(call.Run(Batches{}), (std::vector<int64_t>{1, 1, 2, 2}));
}

TEST(KernelArgsTest, RowForwardCarriesEveryField) {
  NormProblem problem = test::RmsNormProblem(3, 5);
  problem.dtype = DType::kBF16;
  problem.weight_dtype = DType::kF32;
  problem.eps = 0.25;
  problem.weight_offset = 1.0;
  problem.rounding = Rounding::kNormalizedFirst;
  const TensorPointers at = Distinct();
  const RmsNormForwardArgs rms = MakeRmsNormForwardArgs(problem, at);
  EXPECT_EQ(rms.x, at.in(Role::kX));
  EXPECT_EQ(rms.residual, at.in(Role::kResidual));
  EXPECT_EQ(rms.weight, at.in(Role::kWeight));
  EXPECT_EQ(rms.y, at.out(Role::kY));
  EXPECT_EQ(rms.residual_sum, at.out(Role::kResidualSum));
  EXPECT_EQ(rms.rstd, at.out(Role::kRstd));
  EXPECT_EQ(rms.rows, 3);
  EXPECT_EQ(rms.hidden_size, 5);
  EXPECT_EQ(rms.dtype, DType::kBF16);
  EXPECT_EQ(rms.weight_dtype, DType::kF32);
  EXPECT_EQ(rms.eps, 0.25);
  EXPECT_EQ(rms.weight_offset, 1.0);
  EXPECT_EQ(rms.rounding, Rounding::kNormalizedFirst);
  const LayerNormForwardArgs layer = MakeLayerNormForwardArgs(problem, at);
  EXPECT_EQ(layer.bias, at.in(Role::kBias));
  EXPECT_EQ(layer.mean, at.out(Role::kMean));
  EXPECT_EQ(layer.rstd, at.out(Role::kRstd));
  EXPECT_EQ(layer.rounding, Rounding::kNormalizedFirst);
}

TEST(KernelArgsTest, RowBackwardCarriesEveryField) {
  NormProblem problem = test::LayerNormProblem(3, 5);
  problem.weight_offset = 2.0;
  const TensorPointers at = Distinct();
  const LayerNormBackwardArgs layer = MakeLayerNormBackwardArgs(problem, at);
  EXPECT_EQ(layer.dy, at.in(Role::kDy));
  EXPECT_EQ(layer.x, at.in(Role::kX));
  EXPECT_EQ(layer.weight, at.in(Role::kWeight));
  EXPECT_EQ(layer.mean, at.in(Role::kMean));
  EXPECT_EQ(layer.rstd, at.in(Role::kRstd));
  EXPECT_EQ(layer.dresidual_sum, at.in(Role::kDresidualSum));
  EXPECT_EQ(layer.dx, at.out(Role::kDx));
  EXPECT_EQ(layer.dweight, at.out(Role::kDweight));
  EXPECT_EQ(layer.dbias, at.out(Role::kDbias));
  EXPECT_EQ(layer.eps, 1e-5);
  const RmsNormBackwardArgs rms = MakeRmsNormBackwardArgs(problem, at);
  EXPECT_EQ(rms.rstd, at.in(Role::kRstd));
  EXPECT_EQ(rms.dresidual_sum, at.in(Role::kDresidualSum));
  EXPECT_EQ(rms.weight_offset, 2.0);
}

TEST(KernelArgsTest, BatchNormTakesStatisticsByMode) {
  NormProblem problem = test::BatchNormInferenceProblem({2, 3, 4});
  problem.momentum = 0.5;
  const TensorPointers at = Distinct();
  const BatchNormForwardArgs forward = MakeBatchNormForwardArgs(problem, at);
  EXPECT_EQ(forward.running_mean, at.in(Role::kRunningMean));
  EXPECT_EQ(forward.new_running_mean, at.out(Role::kRunningMean));
  EXPECT_EQ(forward.new_running_var, at.out(Role::kRunningVar));
  EXPECT_EQ(forward.shape.spatial, 4);
  EXPECT_EQ(forward.momentum, 0.5);
  EXPECT_EQ(MakeBatchNormBackwardArgs(problem, at).mean, at.in(Role::kRunningMean));
  EXPECT_EQ(MakeBatchNormBackwardArgs(problem, at).running_var, at.in(Role::kRunningVar));
  problem.batch_norm_mode = BatchNormMode::kTraining;
  EXPECT_EQ(MakeBatchNormBackwardArgs(problem, at).mean, at.in(Role::kMean));
  EXPECT_EQ(MakeBatchNormBackwardArgs(problem, at).rstd, at.in(Role::kRstd));
}

TEST(KernelStatusTest, MapsEachCodeOnce) {
  EXPECT_TRUE(ToAbslStatus(Status()).ok());
  const auto code = [](StatusCode from) { return ToAbslStatus(Status(from, "m")).code(); };
  EXPECT_EQ(code(StatusCode::kInvalidArgument), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(StatusCode::kUnsupported), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code(StatusCode::kOutOfMemory), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(StatusCode::kCuda), absl::StatusCode::kInternal);
  EXPECT_EQ(ToAbslStatus(Status(StatusCode::kCuda, "what")).message(), "what");
}

}  // namespace
}  // namespace norm::server
