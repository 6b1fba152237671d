#include "server/scheduler/parameter_interner.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

using Role = TensorRole;

std::unique_ptr<Job> JobWithWeight(const std::vector<float>& weight, size_t run_bytes = 4096) {
  return test::JobBuilder(test::RmsNormProblem(1, static_cast<int64_t>(weight.size())))
      .Input(Role::kWeight, weight)
      .RunBytes(run_bytes)
      .Build(std::make_shared<test::JobOutcome>());
}

uint64_t AlwaysEqual(const std::vector<absl::Span<const std::byte>>&) { return 7; }

TEST(HashRunsTest, IgnoresWhereRunsEnd) {
  std::vector<std::byte> bytes(61);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 37 + 11);
  }
  const absl::Span<const std::byte> all(bytes);
  const uint64_t whole = HashRuns({all});
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (size_t second : {size_t{0}, size_t{1}, size_t{3}, size_t{8}, size_t{20}}) {
      const size_t middle = std::min(second, bytes.size() - first);
      EXPECT_EQ(HashRuns({all.subspan(0, first), all.subspan(first, middle),
                          all.subspan(first + middle)}),
                whole)
          << first << " " << second;
    }
  }
}

TEST(HashRunsTest, SeesEveryByteAndTheLength) {
  std::vector<std::byte> bytes(40);
  const uint64_t base = HashRuns({bytes});
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = std::byte{1};
    EXPECT_NE(HashRuns({bytes}), base) << i;
    bytes[i] = std::byte{0};
  }
  // Zero bytes at the end pad the last word: only the length tells these apart.
  EXPECT_NE(HashRuns({absl::Span<const std::byte>(bytes).first(33)}),
            HashRuns({absl::Span<const std::byte>(bytes).first(34)}));
}

TEST(ParameterInternerTest, EqualBytesAreOnePointerHoweverTheyAreCut) {
  ParameterInterner interner;
  const auto a = interner.Intern(*JobWithWeight({1, 2, 3, 4}));
  const auto b = interner.Intern(*JobWithWeight({1, 2, 3, 4}, 3));
  const auto c = interner.Intern(*JobWithWeight({1, 2, 3, 5}));
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST(ParameterInternerTest, EqualHashesOfOtherBytesStayApart) {
  ParameterInterner interner(&AlwaysEqual);
  const auto a = interner.Intern(*JobWithWeight({1, 2, 3, 4}));
  const auto b = interner.Intern(*JobWithWeight({1, 2, 3, 5}));
  const auto shorter = interner.Intern(*JobWithWeight({1, 2, 3}));
  EXPECT_NE(a, b);
  EXPECT_NE(a, shorter);
  EXPECT_EQ(interner.Intern(*JobWithWeight({1, 2, 3, 4})), a);
  EXPECT_EQ(interner.Intern(*JobWithWeight({1, 2, 3, 5}, 1)), b);
  EXPECT_EQ(interner.Intern(*JobWithWeight({1, 2, 3}, 5)), shorter);
}

TEST(ParameterInternerTest, NoParametersIsNull) {
  ParameterInterner interner;
  NormProblem problem = test::RmsNormProblem(1, 4);
  problem.inputs = test::Roles({Role::kX});
  EXPECT_EQ(interner.Intern(*test::JobBuilder(problem).Build(nullptr)), nullptr);
}

TEST(ParameterInternerTest, DropsContentsWithTheirLastHolder) {
  ParameterInterner interner;
  auto kept = interner.Intern(*JobWithWeight({-1}));
  for (int i = 0; i < 10'000; ++i) {
    interner.Intern(*JobWithWeight({static_cast<float>(i)}));
  }
  EXPECT_EQ(interner.LiveCount(), 1);
  kept.reset();
  EXPECT_EQ(interner.LiveCount(), 0);
}

TEST(ParameterInternerTest, ThreadsThatRaceOnOneContentAgree) {
  ParameterInterner interner(&AlwaysEqual);
  constexpr int kThreads = 4;
  constexpr int kContents = 50;
  std::vector<std::vector<std::shared_ptr<const ParameterSet>>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kContents; ++i) {
        seen[t].push_back(interner.Intern(*JobWithWeight({static_cast<float>(i), 0.5F})));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int t = 1; t < kThreads; ++t) {
    EXPECT_EQ(seen[t], seen[0]);
  }
  EXPECT_EQ(interner.LiveCount(), kContents);
}

}  // namespace
}  // namespace norm::server
