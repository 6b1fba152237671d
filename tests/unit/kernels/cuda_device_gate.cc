// Skips every test of a gpu executable where there is no device that can run it.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "norm/cuda/device_info.h"

namespace norm::testing {
namespace {

/// Why no test can run here; empty when they can.
std::string ReasonToSkip() {
  const Result<int> count = cuda::DeviceCount();
  if (!count.ok()) return "no CUDA device: " + count.status().message();
  if (count.value() == 0) return "no CUDA device";
  return cuda::CheckDeviceImage(0).message();
}

class DeviceGate : public ::testing::Environment {
 public:
  void SetUp() override {
    const std::string reason = ReasonToSkip();
    if (reason.empty()) return;
    // The line by which CTest tells a skipped test from one that passed.
    std::printf("[  SKIPPED ] every test of this program: %s\n", reason.c_str());
    GTEST_SKIP() << reason;
  }
};

[[maybe_unused]] const ::testing::Environment* const kDeviceGate =
    ::testing::AddGlobalTestEnvironment(new DeviceGate);

}  // namespace
}  // namespace norm::testing
