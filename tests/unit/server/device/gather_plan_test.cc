#include "server/device/gather_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

#include "server/device/host_copier.h"
#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

using Role = TensorRole;

/// A batch of one job and its plan.
struct Planned {
  Batch batch;
  BatchLayout layout;
  GatherPlan plan;
};

std::string Numbered(int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(i * 131 + i / 251);
  }
  return text;
}

Planned Plan(const NormProblem& problem, size_t run_bytes, const GatherOptions& options,
             std::initializer_list<Role> page_locked = {}) {
  test::JobBuilder builder(problem);
  builder.RunBytes(run_bytes);
  for (int i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<Role>(i);
    if (problem.inputs.Has(role)) {
      builder.Input(role, Numbered(TensorBytes(problem, role)));
    }
  }
  Planned planned;
  planned.batch.jobs.push_back(builder.Build(nullptr));
  for (const Role role : page_locked) {
    planned.batch.jobs[0]->inputs[static_cast<size_t>(role)].page_locked = true;
  }
  MakeBatchLayout(planned.batch, 0, planned.layout);
  PlanGather(planned.batch, planned.layout, options, planned.plan);
  return planned;
}

/// Every byte of the inputs is in exactly one piece, at its place.
void ExpectComplete(const Planned& planned) {
  std::vector<std::byte> slab(static_cast<size_t>(planned.layout.input_bytes));
  int64_t bytes = 0;
  int64_t gathered = 0;
  for (const CopyPiece& piece : planned.plan.pieces) {
    ASSERT_LE(piece.to + static_cast<int64_t>(piece.from.size()), planned.layout.input_bytes);
    std::memcpy(slab.data() + piece.to, piece.from.data(), piece.from.size());
    bytes += static_cast<int64_t>(piece.from.size());
    gathered += piece.direct ? 0 : static_cast<int64_t>(piece.from.size());
  }
  EXPECT_EQ(planned.plan.gathered_bytes, gathered);
  int64_t expected = 0;
  const BatchSegment& segment = planned.layout.segments[0];
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    if (segment.problem.inputs.Has(static_cast<Role>(i))) {
      const std::string text = Numbered(segment.inputs[i].size_bytes);
      EXPECT_EQ(std::memcmp(slab.data() + segment.inputs[i].offset, text.data(), text.size()), 0);
      expected += segment.inputs[i].size_bytes;
    }
  }
  EXPECT_EQ(bytes, expected);
  size_t end = 0;
  for (size_t chunk = 0; chunk < planned.plan.chunk_ends.size(); ++chunk) {
    int64_t last = -1;
    for (const CopyPiece& piece : planned.plan.ChunkPieces(chunk)) {
      EXPECT_EQ(piece.chunk, static_cast<int32_t>(chunk));
      EXPECT_GT(piece.to, last);
      last = piece.to;
      ++end;
    }
  }
  EXPECT_EQ(end, planned.plan.pieces.size());
}

TEST(GatherPlanTest, WithoutOptionsAllIsOneChunk) {
  const Planned planned = Plan(test::LayerNormProblem(300, 700), 1000, {});
  ExpectComplete(planned);
  EXPECT_EQ(planned.plan.chunk_ends.size(), 1);
}

TEST(GatherPlanTest, ChunksEndAtMultiples) {
  GatherOptions options;
  options.chunk_bytes = 100'000;
  const Planned planned = Plan(test::LayerNormProblem(300, 700), 7777, options);
  ExpectComplete(planned);
  EXPECT_EQ(planned.plan.chunk_ends.size(),
            static_cast<size_t>((planned.layout.input_bytes + 99'999) / 100'000));
  for (const CopyPiece& piece : planned.plan.pieces) {
    EXPECT_EQ(piece.to / 100'000, piece.chunk);
    EXPECT_EQ((piece.to + static_cast<int64_t>(piece.from.size()) - 1) / 100'000, piece.chunk);
  }
}

TEST(GatherPlanTest, ManyChunksBecomeFewerLargerOnes) {
  GatherOptions options;
  options.chunk_bytes = 1;
  const Planned planned = Plan(test::LayerNormProblem(30, 700), 999, options);
  ExpectComplete(planned);
  EXPECT_LE(planned.plan.chunk_ends.size(), static_cast<size_t>(kMaxGatherChunks));
  EXPECT_GT(planned.plan.chunk_ends.size(), static_cast<size_t>(kMaxGatherChunks / 2));
}

TEST(GatherPlanTest, ASliceHasItsRowsOfEveryTensorAndTheFirstTheParameters) {
  NormProblem problem = test::LayerNormProblem(100, 70);
  problem.inputs.Add(Role::kResidual);
  problem.outputs.Add(Role::kResidualSum);
  const RowSlices slices = PlanRowSlices(problem, ProblemBytes(problem) / 4, 32);
  ASSERT_EQ(slices.count, 4);
  GatherOptions options;
  options.slices = &slices;
  const Planned planned = Plan(problem, 1234, options);
  ExpectComplete(planned);
  ASSERT_EQ(planned.plan.chunk_ends.size(), 4);
  const auto bytes = [&](size_t chunk) {
    int64_t sum = 0;
    for (const CopyPiece& piece : planned.plan.ChunkPieces(chunk)) {
      sum += static_cast<int64_t>(piece.from.size());
    }
    return sum;
  };
  EXPECT_EQ(bytes(0), 2 * 25 * 70 * 4 + 2 * 70 * 4);
  EXPECT_EQ(bytes(3), 2 * 25 * 70 * 4);
}

TEST(GatherPlanTest, PageLockedInputsStayWhereTheyAreWhenAskedTo) {
  GatherOptions options;
  options.direct = true;
  const NormProblem problem = test::LayerNormProblem(100, 70);
  const Planned planned = Plan(problem, 1 << 20, options, {Role::kX});
  ExpectComplete(planned);
  EXPECT_EQ(planned.plan.gathered_bytes, 2 * 70 * 4);
  EXPECT_EQ(planned.layout.gathered_bytes, 2 * 512);  // weight and bias, aligned
  for (const CopyPiece& piece : planned.plan.pieces) {
    EXPECT_EQ(piece.direct, piece.to >= planned.layout.gathered_bytes);
  }
  const Planned all = Plan(problem, 1 << 20, {}, {Role::kX});
  ExpectComplete(all);
  EXPECT_EQ(all.plan.gathered_bytes, 100 * 70 * 4 + 2 * 70 * 4);
}

class HostCopierTest : public testing::TestWithParam<int> {};

TEST_P(HostCopierTest, BringsEveryChunkInOrderWhileOthersGather) {
  HostCopier copier(GetParam());
  constexpr int kOwners = 3;
  constexpr int kRounds = 20;
  std::atomic<int64_t> gathered{0};
  std::vector<std::thread> owners;
  for (int t = 0; t < kOwners; ++t) {
    owners.emplace_back([&, t] {
      GatherOptions options;
      options.chunk_bytes = 300'000;
      // Small ones are gathered alone, large ones together.
      const Planned planned =
          Plan(test::LayerNormProblem(t == 0 ? 50 : 1000, 700), 65'536, options);
      for (int round = 0; round < kRounds; ++round) {
        std::vector<std::byte> slab(static_cast<size_t>(planned.layout.input_bytes));
        size_t next = 0;
        copier.Gather(planned.plan, slab.data(), [&](size_t chunk) {
          EXPECT_EQ(chunk, next++);
          for (const CopyPiece& piece : planned.plan.ChunkPieces(chunk)) {
            EXPECT_EQ(std::memcmp(slab.data() + piece.to, piece.from.data(), piece.from.size()), 0);
          }
        });
        EXPECT_EQ(next, planned.plan.chunk_ends.size());
        gathered.fetch_add(planned.plan.gathered_bytes);
      }
    });
  }
  for (std::thread& owner : owners) {
    owner.join();
  }
  EXPECT_EQ(copier.copied_bytes(), gathered.load());
}

TEST_P(HostCopierTest, AnExceptionOfTheCallerLeavesNoWorkBehind) {
  HostCopier copier(GetParam());
  const Planned planned = Plan(test::LayerNormProblem(1000, 700), 65'536, {});
  for (int round = 0; round < 20; ++round) {
    std::vector<std::byte> slab(static_cast<size_t>(planned.layout.input_bytes));
    EXPECT_THROW(copier.Gather(planned.plan, slab.data(),
                               [](size_t) { throw std::runtime_error("no memory"); }),
                 std::runtime_error);
  }
  std::vector<std::byte> slab(static_cast<size_t>(planned.layout.input_bytes));
  size_t chunks = 0;
  copier.Gather(planned.plan, slab.data(), [&](size_t) { ++chunks; });
  EXPECT_EQ(chunks, 1);
}

INSTANTIATE_TEST_SUITE_P(Helpers, HostCopierTest, testing::Values(0, 1, 4));

}  // namespace
}  // namespace norm::server
