// The ranges of a batch's stages, as an NVTX tool sees them.
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <string>

#include "server/device/cuda_batch_executor.h"
#include "tests/support/job_builder.h"
#include "tests/support/nvtx_ranges.h"

namespace norm::server {
namespace {

using Counts = std::map<std::string, int64_t>;

constexpr int64_t kAlways = 0;
constexpr int64_t kNever = int64_t{1} << 40;

/// Ranges that one batch of RMSNorm [64, 512] f32 opens on its way.
Counts RangesOfABatch(const CudaWays& ways) {
  Metrics metrics({"device"}, BatchCloseReasonNames());
  CudaBatchExecutorOptions options;
  options.slots = 1;
  options.ways = ways;
  auto executor = CudaBatchExecutor::Create(options, metrics);
  EXPECT_TRUE(executor.ok()) << executor.status();
  const Counts before = test::NvtxRanges();
  auto batch = std::make_unique<Batch>();
  batch->jobs.push_back(test::JobBuilder(test::RmsNormProblem(64, 512)).Build(nullptr));
  std::promise<absl::Status> status;
  (*executor)->Start(std::move(batch), [&](std::unique_ptr<Batch> done) {
    status.set_value(done->results.at(0).status);
  });
  EXPECT_TRUE(status.get_future().get().ok());
  EXPECT_EQ(test::OpenNvtxRanges(), 0);
  Counts ranges = test::NvtxRanges();
  for (const auto& [name, count] : before) {
    if ((ranges[name] -= count) == 0) ranges.erase(name);
  }
  return ranges;
}

TEST(CudaProfileRangesTest, EveryStageOfEveryWayHasItsRange) {
  test::CountNvtxRanges();
  // Inputs and outputs take 2 * 128 KiB; the weight is gathered beside x.
  EXPECT_EQ(RangesOfABatch({.mapped_bytes = kNever}), (Counts{{"gather", 1}, {"kernel", 1}}));
  EXPECT_EQ(RangesOfABatch({.mapped_bytes = 0, .mapped_output_bytes = kNever}),
            (Counts{{"gather", 1}, {"copy_in", 1}, {"kernel", 1}}));
  EXPECT_EQ(RangesOfABatch({.mapped_bytes = 0, .mapped_output_bytes = 0, .sliced_bytes = kNever}),
            (Counts{{"gather", 1}, {"copy_in", 1}, {"kernel", 1}, {"copy_out", 1}}));
  // Four slices of 64 KiB, one after another through each stage.
  EXPECT_EQ(RangesOfABatch({.mapped_bytes = 0,
                            .mapped_output_bytes = 0,
                            .sliced_bytes = kAlways,
                            .slice_bytes = int64_t{64} << 10}),
            (Counts{{"gather", 1}, {"copy_in", 4}, {"kernel", 4}, {"copy_out", 4}}));
}

}  // namespace
}  // namespace norm::server
