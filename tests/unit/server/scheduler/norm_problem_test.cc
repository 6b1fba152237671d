#include "server/scheduler/norm_problem.h"

#include <gtest/gtest.h>

#include "server/scheduler/scheduler.h"
#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

using Role = TensorRole;

TEST(NormProblemTest, CountsElementsOfEachRole) {
  NormProblem problem = test::LayerNormProblem(3, 5);
  problem.dtype = DType::kBF16;
  problem.weight_dtype = DType::kF32;
  EXPECT_EQ(TensorElements(problem, Role::kX), 15);
  EXPECT_EQ(TensorBytes(problem, Role::kX), 30);
  EXPECT_EQ(TensorBytes(problem, Role::kDx), 30);
  EXPECT_EQ(TensorBytes(problem, Role::kWeight), 20);
  EXPECT_EQ(TensorBytes(problem, Role::kDbias), 20);
  EXPECT_EQ(TensorBytes(problem, Role::kMean), 12);  // f32, one per row
  // x and y 30 each, weight and bias 20 each.
  EXPECT_EQ(ProblemBytes(problem), 100);
  EXPECT_EQ(ParameterBytes(problem), 40);
}

TEST(NormProblemTest, BatchNormStatisticsArePerChannel) {
  NormProblem problem = test::BatchNormInferenceProblem({.batch = 2, .channels = 3, .spatial = 4});
  problem.dtype = DType::kF64;
  problem.weight_dtype = DType::kF64;
  EXPECT_EQ(TensorElements(problem, Role::kX), 24);
  EXPECT_EQ(TensorElements(problem, Role::kRstd), 3);
  EXPECT_EQ(TensorBytes(problem, Role::kRunningVar), 24);  // f64 statistics for f64
  EXPECT_EQ(ProblemBytes(problem), 2 * 24 * 8 + 4 * 3 * 8);
}

TEST(NormProblemTest, CountsATensorGivenAndReturnedTwice) {
  NormProblem problem = test::BatchNormInferenceProblem({.batch = 4, .channels = 2, .spatial = 1});
  const int64_t before = ProblemBytes(problem);
  problem.batch_norm_mode = BatchNormMode::kTraining;
  problem.outputs.Add(Role::kRunningMean);
  EXPECT_EQ(ProblemBytes(problem), before + 8);
}

TEST(NormProblemTest, ElementCountsPassThirtyTwoBits) {
  const NormProblem problem = test::RmsNormProblem(int64_t{1} << 20, int64_t{1} << 14);
  EXPECT_EQ(TensorBytes(problem, Role::kX), int64_t{1} << 36);
}

TEST(NormProblemTest, MergesForwardAndInferenceOnly) {
  NormProblem row = test::RmsNormProblem(2, 8);
  EXPECT_TRUE(IsRowMergeable(row));
  row.outputs.Add(Role::kRstd);
  EXPECT_TRUE(IsRowMergeable(row));
  row.direction = Direction::kBackward;
  EXPECT_FALSE(IsRowMergeable(row));

  NormProblem batch_norm =
      test::BatchNormInferenceProblem({.batch = 2, .channels = 3, .spatial = 4});
  EXPECT_TRUE(IsRowMergeable(batch_norm));
  batch_norm.outputs.Add(Role::kRstd);  // per channel: no slice of it belongs to one job
  EXPECT_FALSE(IsRowMergeable(batch_norm));
  batch_norm.outputs = test::Roles({Role::kY});
  batch_norm.batch_norm_mode = BatchNormMode::kTraining;
  EXPECT_FALSE(IsRowMergeable(batch_norm));
}

TEST(NormProblemTest, NamesRolesAsTheProtoDoes) {
  EXPECT_STREQ(TensorRoleName(Role::kX), "x");
  EXPECT_STREQ(TensorRoleName(Role::kDresidualSum), "dresidual_sum");
  EXPECT_STREQ(TensorRoleName(Role::kRunningVar), "running_var");
}

TEST(RetryAfterTest, TravelsWithTheStatus) {
  const absl::Status status =
      WithRetryAfter(absl::UnavailableError("full"), absl::Milliseconds(12.5));
  EXPECT_EQ(RetryAfter(status), absl::Milliseconds(12.5));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(RetryAfter(absl::UnavailableError("full")), absl::ZeroDuration());
  EXPECT_EQ(RetryAfter(absl::OkStatus()), absl::ZeroDuration());
}

}  // namespace
}  // namespace norm::server
