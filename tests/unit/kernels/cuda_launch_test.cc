// The launch statement of the library, on a device.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dispatch/launch.h"
#include "norm/cuda/stream.h"
#include "tests/unit/kernels/shared_memory_probe.h"

namespace norm::internal {
namespace {

/// Launches the kernel `calls` times on a stream of its own; the first error, or nothing.
std::string LaunchAgainAndAgain(int64_t shared_bytes, int calls) {
  const Result<cuda::Stream> stream = cuda::Stream::Create(/*device=*/0);
  if (!stream.ok()) return stream.status().message();
  LaunchConfig config;
  config.threads_x = 32;
  config.dynamic_shared_bytes = shared_bytes;
  for (int call = 0; call < calls; ++call) {
    const Status launched =
        Launch(norm_device::SharedMemoryProbe(), config, 0, stream.value().view().handle());
    if (!launched.ok()) {
      return std::to_string(shared_bytes) + " bytes, call " + std::to_string(call) + ": " +
             launched.message();
    }
  }
  return stream.value().view().Synchronize().message();
}

// What a kernel may take is a property of the kernel, not of the thread that launches it.
TEST(CudaLaunchTest, ThreadsThatNeedDifferentSharedMemoryDoNotDisturbEachOther) {
  constexpr int kCalls = 20'000;
  constexpr std::array<int64_t, 4> kSharedBytes = {49 << 10, 52 << 10, 58 << 10, 64 << 10};
  std::array<std::string, kSharedBytes.size()> errors;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kSharedBytes.size(); ++i) {
    threads.emplace_back([&, i] { errors[i] = LaunchAgainAndAgain(kSharedBytes[i], kCalls); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace norm::internal
