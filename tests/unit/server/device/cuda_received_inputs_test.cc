// Inputs that lie in page-locked memory in many runs, as large messages are received.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "norm/cuda/pinned_buffer.h"
#include "server/device/cuda_batch_executor.h"
#include "tests/unit/server/device/oracle_check.h"

namespace norm::server {
namespace {

using Jobs = std::vector<std::unique_ptr<Job>>;
using Role = TensorRole;

/// Page-locked memory that jobs' inputs are moved to.
class ReceivedMemory {
 public:
  ReceivedMemory() {
    auto buffer = cuda::PinnedBuffer::Allocate(kBytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    buffer_ = std::move(buffer).value();
    end_ = buffer_.data() + kBytes;
  }

  /// The job with all its inputs here, at odd addresses: a short piece, then such as gRPC reads into.
  /// In every other input each lies below the one before it, as they often do.
  std::unique_ptr<Job> Receive(std::unique_ptr<Job> job) {
    for (InputTensor& input : job->inputs) {
      if (input.size_bytes == 0) continue;
      std::vector<std::byte> bytes;
      for (const auto run : input.runs) bytes.insert(bytes.end(), run.begin(), run.end());
      falling_ = !falling_;
      const std::byte* const top = end_;
      end_ -= 3 + bytes.size();
      std::byte* at = falling_ ? end_ + bytes.size() + 1 : end_ + 1;
      EXPECT_GE(end_, buffer_.data());
      input.runs.clear();
      for (size_t done = 0; done < bytes.size();) {
        const size_t size = std::min(bytes.size() - done, done == 0 ? 2384 : kPieceBytes);
        at -= falling_ ? size : 0;
        std::memcpy(at, bytes.data() + done, size);
        input.runs.emplace_back(at, size);
        EXPECT_LE(at + size, top);
        at += falling_ ? 0 : size;
        done += size;
      }
      input.page_locked = true;
    }
    return job;
  }

 private:
  static constexpr size_t kBytes = size_t{64} << 20;
  static constexpr size_t kPieceBytes = size_t{64} << 10;

  cuda::PinnedBuffer buffer_;
  std::byte* end_ = nullptr;
  bool falling_ = false;
};

class CudaReceivedInputsTest : public testing::Test {
 protected:
  /// As one batch, of one segment where there are several, on an executor of its own.
  std::vector<JobResult> Run(const CudaWays& ways, Jobs jobs) {
    CudaBatchExecutorOptions options;
    options.slots = 1;
    options.pinned_budget_bytes = options.device_budget_bytes = int64_t{512} << 20;
    options.prewarm_bytes = 1 << 20;
    options.ways = ways;
    auto executor = CudaBatchExecutor::Create(options, metrics_);
    EXPECT_TRUE(executor.ok()) << executor.status();
    auto batch = std::make_unique<Batch>();
    batch->jobs = std::move(jobs);
    std::vector<std::shared_ptr<test::JobOutcome>> outcomes;
    for (size_t i = 0; i < batch->jobs.size(); ++i) {
      outcomes.push_back(std::make_shared<test::JobOutcome>());
    }
    (*executor)->Start(std::move(batch), [&](std::unique_ptr<Batch> done) {
      for (size_t i = 0; i < outcomes.size(); ++i) {
        outcomes[i]->Finish(std::move(done->results.at(i)));
      }
    });
    std::vector<JobResult> results;
    for (const auto& outcome : outcomes) results.push_back(outcome->Await());
    host_copied_bytes_ = (*executor)->host_copied_bytes();
    return results;
  }
  JobResult RunOne(const CudaWays& ways, std::unique_ptr<Job> job) {
    Jobs jobs;
    jobs.push_back(std::move(job));
    return std::move(Run(ways, std::move(jobs))[0]);
  }

  ReceivedMemory received_;
  Metrics metrics_{{"device"}, BatchCloseReasonNames()};  // results outlive their executors
  int64_t host_copied_bytes_ = 0;
};

/// The ways of batches that are not mapped.
std::vector<CudaWays> CopyingWays() {
  CudaWays mapped_output;
  mapped_output.mapped_output_bytes = int64_t{1} << 40;
  CudaWays sliced;
  sliced.sliced_bytes = 0;
  sliced.slice_bytes = 300'000;
  return {CudaWays(), mapped_output, sliced};
}

int64_t InputBytes(const NormProblem& problem) {
  int64_t bytes = 0;
  for (int i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<Role>(i);
    if (problem.inputs.Has(role)) bytes += TensorBytes(problem, role);
  }
  return bytes;
}

TEST_F(CudaReceivedInputsTest, AreCopiedFromWhereTheyLie) {
  NormProblem forward = test::LayerNormProblem(999, 515);
  forward.inputs.Add(Role::kResidual);
  forward.outputs = test::Roles({Role::kY, Role::kResidualSum, Role::kMean, Role::kRstd});
  NormProblem backward = test::LayerNormProblem(999, 515);
  backward.direction = Direction::kBackward;
  backward.inputs = test::Roles({Role::kX, Role::kDy, Role::kWeight});
  backward.outputs = test::Roles({Role::kDx, Role::kDweight, Role::kDbias});
  NormProblem half = test::RmsNormProblem(777, 1001);
  half.dtype = half.weight_dtype = DType::kBF16;
  for (const NormProblem& problem :
       {forward, backward, half, test::BatchNormInferenceProblem({31, 17, 999})}) {
    const test::ProblemInputs inputs = test::RandomInputs(problem, 5);
    const JobResult gathered = RunOne({}, test::BuilderFor(inputs).RunBytes(5000).Build(nullptr));
    test::ExpectMatchesOracle(inputs, gathered);
    for (const CudaWays& ways : CopyingWays()) {
      const JobResult direct =
          RunOne(ways, received_.Receive(test::BuilderFor(inputs).Build(nullptr)));
      test::ExpectSameBits(inputs, gathered, direct);
      // They are smaller than what is copied from where it lies.
      EXPECT_EQ(host_copied_bytes_, ParameterBytes(problem));
    }
  }
}

TEST_F(CudaReceivedInputsTest, LargeParametersAreCopiedFromThereToo) {
  const NormProblem problem = test::RmsNormProblem(3, 40'000);
  const test::ProblemInputs inputs = test::RandomInputs(problem, 6);
  const JobResult result = RunOne({}, received_.Receive(test::BuilderFor(inputs).Build(nullptr)));
  test::ExpectMatchesOracle(inputs, result);
  EXPECT_EQ(host_copied_bytes_, 0);
}

TEST_F(CudaReceivedInputsTest, OfSmallBatchesAreGathered) {
  const NormProblem problem = test::RmsNormProblem(16, 512);
  const test::ProblemInputs inputs = test::RandomInputs(problem, 7);
  const JobResult result = RunOne({}, received_.Receive(test::BuilderFor(inputs).Build(nullptr)));
  test::ExpectMatchesOracle(inputs, result);
  EXPECT_EQ(host_copied_bytes_, InputBytes(problem));
}

TEST_F(CudaReceivedInputsTest, ShareALaunchWithTheBitsOfEachAlone) {
  const NormProblem problem = test::RmsNormProblem(501, 700);
  std::vector<test::ProblemInputs> inputs{test::RandomInputs(problem, 8),
                                          test::RandomInputs(problem, 9)};
  // Rows are concatenated where parameters are equal.
  inputs[1].bytes[static_cast<size_t>(Role::kWeight)] =
      inputs[0].bytes[static_cast<size_t>(Role::kWeight)];
  std::vector<JobResult> alone;
  for (const auto& one : inputs) {
    alone.push_back(RunOne({}, test::BuilderFor(one).RunBytes(5000).Build(nullptr)));
  }
  // Where one lies elsewhere, the rows of all are gathered.
  for (const bool all : {true, false}) {
    for (const CudaWays& ways : CopyingWays()) {
      Jobs jobs;
      jobs.push_back(received_.Receive(test::BuilderFor(inputs[0]).Build(nullptr)));
      auto other = test::BuilderFor(inputs[1]).RunBytes(5000).Build(nullptr);
      jobs.push_back(all ? received_.Receive(std::move(other)) : std::move(other));
      const std::vector<JobResult> together = Run(ways, std::move(jobs));
      for (size_t i = 0; i < together.size(); ++i) {
        test::ExpectSameBits(inputs[i], alone[i], together[i]);
      }
      EXPECT_EQ(host_copied_bytes_,
                ParameterBytes(problem) + (all ? 0 : 2 * TensorBytes(problem, Role::kX)));
    }
  }
}

}  // namespace
}  // namespace norm::server
