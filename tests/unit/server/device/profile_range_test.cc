// Ranges as an NVTX tool sees them; needs no device.
#include "norm/cuda/profile_range.h"

#include <gtest/gtest.h>

#include "tests/support/nvtx_ranges.h"

namespace norm::cuda {
namespace {

using Counts = std::map<std::string, int64_t>;

TEST(ProfileRangeTest, ANvtxToolSeesItsNameItsBeginAndItsEnd) {
  test::CountNvtxRanges();
  {
    const ProfileRange outer("outer");
    for (int i = 0; i < 2; ++i) {
      const ProfileRange inner("inner");
      EXPECT_EQ(test::OpenNvtxRanges(), 2);
    }
    EXPECT_EQ(test::OpenNvtxRanges(), 1);
  }
  EXPECT_EQ(test::OpenNvtxRanges(), 0);
  EXPECT_EQ(test::NvtxRanges(), (Counts{{"outer", 1}, {"inner", 2}}));
}

}  // namespace
}  // namespace norm::cuda
