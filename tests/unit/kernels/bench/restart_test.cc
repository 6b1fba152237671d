#include "bench/restart.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

namespace norm::bench {
namespace {

/// The restarted process lists this binary's tests and ends with 0.
const std::vector<std::string> kTarget = {"--gtest_list_tests"};

TEST(RestartDeathTest, ADeadlineGoesOnWithTheGivenArguments) {
  EXPECT_EXIT(
      {
        const CaseDeadline deadline(kTarget, 600);
        std::raise(SIGALRM);
      },
      ::testing::ExitedWithCode(0), "the case did not end in time");
}

TEST(RestartDeathTest, ARestartReplacesTheProcess) {
  EXPECT_EXIT(Restart(kTarget), ::testing::ExitedWithCode(0), "");
}

TEST(RestartDeathTest, ACaseThatEndsInTimeLeavesNoAlarm) {
  { const CaseDeadline deadline(kTarget, 600); }
  EXPECT_EQ(alarm(0), 0u);
}

}  // namespace
}  // namespace norm::bench
