#include "server/device/batch_layout.h"

#include <gmock/gmock.h>

#include <cstring>

#include "server/device/buffer_pool.h"
#include "server/device/gather_plan.h"
#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Role = TensorRole;

Batch BatchOf(std::vector<test::JobBuilder> builders) {
  Batch batch;
  for (test::JobBuilder& builder : builders) {
    batch.jobs.push_back(builder.Build(nullptr));
  }
  return batch;
}

TensorPlace PlaceOf(const std::array<TensorPlace, kTensorRoleCount>& places, Role role) {
  return places[static_cast<size_t>(role)];
}

BatchLayout LayoutOf(const Batch& batch) {
  BatchLayout layout;
  MakeBatchLayout(batch, 0, layout);
  return layout;
}

std::vector<std::byte> Gather(const Batch& batch, const BatchLayout& layout) {
  std::vector<std::byte> slab(static_cast<size_t>(layout.input_bytes), std::byte{0xEE});
  int64_t last = -1;
  GatherPlan plan;
  PlanGather(batch, layout, {}, plan);
  for (const CopyPiece& piece : plan.pieces) {
    EXPECT_GT(piece.to, last);
    last = piece.to;
    std::memcpy(slab.data() + piece.to, piece.from.data(), piece.from.size());
  }
  return slab;
}

std::vector<float> FloatsAt(const std::vector<std::byte>& slab, TensorPlace place) {
  std::vector<float> values(static_cast<size_t>(place.size_bytes) / sizeof(float));
  std::memcpy(values.data(), slab.data() + place.offset, static_cast<size_t>(place.size_bytes));
  return values;
}

TEST(BatchLayoutTest, AlignsEveryTensor) {
  NormProblem problem = test::LayerNormProblem(3, 5);
  problem.outputs.Add(Role::kMean);
  const Batch batch = BatchOf({test::JobBuilder(problem), test::JobBuilder(problem)});
  const BatchLayout layout = LayoutOf(batch);
  ASSERT_EQ(layout.segments.size(), 1);
  const BatchSegment& segment = layout.segments[0];
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    EXPECT_EQ(segment.inputs[i].offset % kSlabAlignment, 0);
    EXPECT_EQ(segment.outputs[i].offset % kSlabAlignment, 0);
  }
  EXPECT_EQ(segment.problem.rows, 6);
  EXPECT_EQ(PlaceOf(segment.inputs, Role::kX).size_bytes, 6 * 5 * 4);
  EXPECT_EQ(PlaceOf(segment.inputs, Role::kWeight).size_bytes, 5 * 4);
  EXPECT_EQ(PlaceOf(segment.outputs, Role::kMean).size_bytes, 6 * 4);
}

TEST(BatchLayoutTest, ConcatenatesRowsAndTakesParametersOnce) {
  const std::vector<float> weight{7, 8};
  const Batch batch = BatchOf({
      test::JobBuilder(test::RmsNormProblem(1, 2))
          .Input(Role::kX, std::vector<float>{1, 2})
          .Input(Role::kWeight, weight)
          .RunBytes(3),
      test::JobBuilder(test::RmsNormProblem(2, 2))
          .Input(Role::kX, std::vector<float>{3, 4, 5, 6})
          .Input(Role::kWeight, weight)
          .RunBytes(5),
      test::JobBuilder(test::RmsNormProblem(0, 2)).Input(Role::kWeight, weight),
  });
  const BatchLayout layout = LayoutOf(batch);
  const std::vector<std::byte> slab = Gather(batch, layout);
  EXPECT_THAT(FloatsAt(slab, PlaceOf(layout.segments[0].inputs, Role::kX)),
              ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(FloatsAt(slab, PlaceOf(layout.segments[0].inputs, Role::kWeight)), ElementsAre(7, 8));
}

TEST(BatchLayoutTest, PageLockedInputsStayInPlaceIfTheyAreLargeInEveryJob) {
  // x of 24 and of 48 bytes, weights of 12.
  Batch batch = BatchOf(
      {test::JobBuilder(test::RmsNormProblem(2, 3)), test::JobBuilder(test::RmsNormProblem(4, 3))});
  const auto gathered_bytes = [&batch](int64_t direct_bytes) {
    BatchLayout layout;
    MakeBatchLayout(batch, direct_bytes, layout);
    EXPECT_EQ(layout.input_bytes, 2 * kSlabAlignment);
    return layout.gathered_bytes;
  };
  EXPECT_EQ(gathered_bytes(0), 2 * kSlabAlignment) << "none is page-locked";
  const auto x = static_cast<size_t>(Role::kX);
  batch.jobs[0]->inputs[x].page_locked = true;
  EXPECT_EQ(gathered_bytes(0), 2 * kSlabAlignment) << "only that of one job";
  batch.jobs[1]->inputs[x].page_locked = true;
  EXPECT_EQ(gathered_bytes(24), kSlabAlignment) << "the weight";
  EXPECT_EQ(gathered_bytes(25), 2 * kSlabAlignment) << "one is too small";
  EXPECT_EQ(gathered_bytes(kGatherAll), 2 * kSlabAlignment);
}

TEST(BatchLayoutTest, SegmentsLieOneBehindTheOtherEachWithItsParameters) {
  const auto job = [](std::vector<float> x, std::vector<float> weight) {
    return test::JobBuilder(test::RmsNormProblem(static_cast<int64_t>(x.size()) / 2, 2))
        .Input(Role::kX, x)
        .Input(Role::kWeight, weight);
  };
  Batch batch = BatchOf({job({1, 2}, {7, 8}), job({3, 4, 5, 6}, {7, 8}), job({9, 10}, {11, 12})});
  batch.segment_jobs = {2, 1};
  const BatchLayout layout = LayoutOf(batch);
  ASSERT_EQ(layout.segments.size(), 2);
  EXPECT_EQ(layout.segments[0].problem.rows, 3);
  EXPECT_EQ(layout.segments[1].problem.rows, 1);
  EXPECT_EQ(layout.segments[1].first_job, 2);
  EXPECT_EQ(layout.rows(), 4);
  // Four rows of two values in and out, two weights.
  EXPECT_EQ(layout.problem_bytes(), 4 * 2 * (4 + 4) + 2 * 2 * 4);
  EXPECT_EQ(layout.input_bytes, 4 * kSlabAlignment);
  EXPECT_EQ(layout.output_bytes, 2 * kSlabAlignment);
  const std::vector<std::byte> slab = Gather(batch, layout);
  EXPECT_THAT(FloatsAt(slab, PlaceOf(layout.segments[0].inputs, Role::kX)),
              ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(FloatsAt(slab, PlaceOf(layout.segments[0].inputs, Role::kWeight)), ElementsAre(7, 8));
  EXPECT_THAT(FloatsAt(slab, PlaceOf(layout.segments[1].inputs, Role::kX)), ElementsAre(9, 10));
  EXPECT_THAT(FloatsAt(slab, PlaceOf(layout.segments[1].inputs, Role::kWeight)),
              ElementsAre(11, 12));
  auto output = std::shared_ptr<std::byte>(new std::byte[static_cast<size_t>(layout.output_bytes)],
                                           std::default_delete<std::byte[]>());
  FillResults(layout, output, batch);
  const auto y_at = [&](size_t i) {
    return batch.results[i].outputs[static_cast<size_t>(Role::kY)].data - output.get();
  };
  EXPECT_EQ(y_at(0), 0);
  EXPECT_EQ(y_at(1), 8);
  EXPECT_EQ(y_at(2), kSlabAlignment);
}

TEST(BatchLayoutTest, ASegmentThatTheKernelsRefuseFailsAlone) {
  NormProblem bad = test::RmsNormProblem(1, 2);
  bad.eps = -1.0;
  Batch batch = BatchOf({test::JobBuilder(test::RmsNormProblem(1, 2)), test::JobBuilder(bad),
                         test::JobBuilder(test::RmsNormProblem(3, 2))});
  batch.segment_jobs = {1, 1, 1};
  BatchLayout layout = LayoutOf(batch);
  std::vector<std::byte> input(static_cast<size_t>(layout.input_bytes));
  auto output = std::shared_ptr<std::byte>(new std::byte[static_cast<size_t>(layout.output_bytes)],
                                           std::default_delete<std::byte[]>());
  KernelCall call;
  AddSegments(input.data(), output.get(), layout, call);
  call.Run([](auto segments) { EXPECT_EQ(segments.size(), 2); });
  FillResults(layout, output, batch);
  EXPECT_TRUE(batch.results[0].status.ok());
  EXPECT_EQ(batch.results[1].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(batch.results[1].status.message()), HasSubstr("eps"));
  EXPECT_TRUE(batch.results[2].status.ok());
}

TEST(BatchLayoutTest, ResultsAreSlicesOfOneSlab) {
  NormProblem one = test::LayerNormProblem(1, 2);
  one.outputs.Add(Role::kMean);
  NormProblem three = one;
  three.rows = 3;
  Batch batch = BatchOf({test::JobBuilder(one), test::JobBuilder(three)});
  const BatchLayout layout = LayoutOf(batch);
  auto slab = std::shared_ptr<std::byte>(new std::byte[static_cast<size_t>(layout.output_bytes)],
                                         std::default_delete<std::byte[]>());
  FillResults(layout, slab, batch);
  const auto y = [&](size_t job) {
    return batch.results[job].outputs[static_cast<size_t>(Role::kY)];
  };
  const auto mean = [&](size_t job) {
    return batch.results[job].outputs[static_cast<size_t>(Role::kMean)];
  };
  EXPECT_EQ(y(0).data - slab.get(), PlaceOf(layout.segments[0].outputs, Role::kY).offset);
  EXPECT_EQ(y(1).data - y(0).data, 8);
  EXPECT_EQ(y(1).size_bytes, 24);
  EXPECT_EQ(mean(1).data - mean(0).data, 4);
  EXPECT_EQ(mean(1).size_bytes, 12);
  EXPECT_EQ(batch.results[0].outputs[static_cast<size_t>(Role::kRstd)].data, nullptr);
  std::weak_ptr<std::byte> watched = slab;
  slab.reset();
  batch.results[0] = {};
  EXPECT_FALSE(watched.expired());
  batch.results[1] = {};
  EXPECT_TRUE(watched.expired());
}

TEST(BatchLayoutTest, BatchNormPositionsMergeWhereChannelsAreLast) {
  const Batch batch = BatchOf({
      test::JobBuilder(test::BatchNormInferenceProblem({2, 3, 4, BatchNormLayout::kNhwc})),
      test::JobBuilder(test::BatchNormInferenceProblem({5, 3, 1, BatchNormLayout::kNchw})),
  });
  const BatchNormShape shape = LayoutOf(batch).segments[0].problem.batch_norm_shape;
  EXPECT_EQ(shape.batch, 13);
  EXPECT_EQ(shape.channels, 3);
  EXPECT_EQ(shape.spatial, 1);
  EXPECT_EQ(shape.layout, BatchNormLayout::kNhwc);
}

TEST(BatchLayoutTest, BatchNormImagesMergeInNchw) {
  const Batch batch = BatchOf({
      test::JobBuilder(test::BatchNormInferenceProblem({2, 3, 4})),
      test::JobBuilder(test::BatchNormInferenceProblem({5, 3, 4})),
  });
  const NormProblem merged = LayoutOf(batch).segments[0].problem;
  EXPECT_EQ(merged.batch_norm_shape.batch, 7);
  EXPECT_EQ(merged.batch_norm_shape.spatial, 4);
  EXPECT_EQ(merged.batch_norm_shape.layout, BatchNormLayout::kNchw);
  EXPECT_EQ(merged.rows, 28);
}

TEST(BatchLayoutTest, AJobOfTheWrongSizeFailsAlone) {
  const std::vector<float> weight{1, 1};
  Batch batch = BatchOf({
      test::JobBuilder(test::RmsNormProblem(1, 2))
          .Input(Role::kX, std::vector<float>{1, 2})
          .Input(Role::kWeight, weight),
      test::JobBuilder(test::RmsNormProblem(1, 2))
          .Input(Role::kX, std::vector<float>{1, 2, 3})
          .Input(Role::kWeight, weight),
      test::JobBuilder(test::RmsNormProblem(1, 2))
          .Input(Role::kX, std::vector<float>{5, 6})
          .Input(Role::kWeight, weight),
  });
  const BatchLayout layout = LayoutOf(batch);
  const std::vector<std::byte> slab = Gather(batch, layout);
  const std::vector<float> x = FloatsAt(slab, PlaceOf(layout.segments[0].inputs, Role::kX));
  EXPECT_EQ(x[0], 1);
  EXPECT_EQ(x[5], 6);
  auto output = std::make_shared<std::byte>();
  FillResults(layout, output, batch);
  EXPECT_TRUE(batch.results[0].status.ok());
  EXPECT_EQ(batch.results[1].status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(batch.results[1].status.message()), HasSubstr("x"));
  EXPECT_EQ(batch.results[1].outputs[static_cast<size_t>(Role::kY)].data, nullptr);
  EXPECT_TRUE(batch.results[2].status.ok());
}

}  // namespace
}  // namespace norm::server
