// The RAII types over the CUDA runtime, on a device.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "norm/cuda/copy.h"
#include "norm/cuda/cuda_status.h"
#include "norm/cuda/device_buffer.h"
#include "norm/cuda/device_guard.h"
#include "norm/cuda/device_info.h"
#include "norm/cuda/event.h"
#include "norm/cuda/pinned_buffer.h"
#include "norm/cuda/stream.h"
#include "norm/kernels/rms_norm.h"

namespace norm::cuda {
namespace {

using ::testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<Stream> && !std::is_copy_constructible_v<DeviceBuffer>);
static_assert(!std::is_constructible_v<StreamView, std::nullptr_t>);

template <typename T>
T Take(Result<T> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(result).value();
}

TEST(DeviceInfoTest, DescribesTheFirstDevice) {
  const DeviceInfo info = Take(QueryDevice(0));
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.compute_major, 7);
  EXPECT_GT(info.sm_count, 0);
  EXPECT_GT(info.memory_bytes, 0);
  EXPECT_FALSE(info.pci_bus_id.empty());
  EXPECT_GT(Take(FreeDeviceMemoryBytes(0)), 0);
  EXPECT_THAT(BuiltArchitectures(), HasSubstr("sm_"));
}

TEST(DeviceInfoTest, RefusesADeviceThatDoesNotExist) {
  const int count = Take(DeviceCount());
  EXPECT_FALSE(QueryDevice(count).ok());
  EXPECT_FALSE(CheckDeviceImage(count).ok());
  EXPECT_FALSE(Stream::Create(count).ok());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(BuffersTest, CopyThroughPinnedAndDeviceMemoryKeepsBytes) {
  constexpr size_t kBytes = 1000;
  Stream stream = Take(Stream::Create(0));
  PinnedBuffer in = Take(PinnedBuffer::Allocate(kBytes));
  PinnedBuffer out = Take(PinnedBuffer::Allocate(kBytes));
  DeviceBuffer plain = Take(DeviceBuffer::Allocate(kBytes, 0));
  DeviceBuffer ordered = Take(DeviceBuffer::AllocateOn(stream.view(), kBytes, 0));
  for (size_t i = 0; i < kBytes; ++i) in.data()[i] = static_cast<std::byte>(i * 7);
  EXPECT_TRUE(CopyAsync(plain.data(), in.data(), kBytes, stream.view()).ok());
  EXPECT_TRUE(CopyAsync(ordered.data(), plain.data(), kBytes, stream.view()).ok());
  EXPECT_TRUE(CopyAsync(out.data(), ordered.data(), kBytes, stream.view()).ok());
  EXPECT_TRUE(stream.view().Synchronize().ok());
  EXPECT_EQ(std::memcmp(in.data(), out.data(), kBytes), 0);
  EXPECT_TRUE(ordered.Close().ok());
  EXPECT_TRUE(ordered.Close().ok());
  EXPECT_EQ(ordered.data(), nullptr);
  EXPECT_TRUE(plain.Close().ok());
  EXPECT_TRUE(in.Close().ok());
  EXPECT_TRUE(stream.Close().ok());
}

TEST(BuffersTest, MovingLeavesAClosedBuffer) {
  DeviceBuffer first = Take(DeviceBuffer::Allocate(64, 0));
  void* const data = first.data();
  DeviceBuffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT: the moved-from state is documented
  first = std::move(second);
  EXPECT_EQ(first.data(), data);
  EXPECT_EQ(first.size_bytes(), 64U);
}

TEST(BuffersTest, ZeroBytesOwnNothing) {
  EXPECT_EQ(Take(DeviceBuffer::Allocate(0, 0)).data(), nullptr);
  EXPECT_EQ(Take(PinnedBuffer::Allocate(0)).data(), nullptr);
}

TEST(BuffersTest, OutOfMemoryIsItsOwnCodeAndNotSticky) {
  const Result<DeviceBuffer> huge = DeviceBuffer::Allocate(size_t{1} << 50, 0);
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.status().code(), StatusCode::kOutOfMemory);
  EXPECT_FALSE(IsSticky(huge.status()));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_TRUE(DeviceBuffer::Allocate(64, 0).ok());
}

TEST(EventTest, CompletesAndMeasures) {
  Stream stream = Take(Stream::Create(0, StreamPriority::kHigh));
  Stream other = Take(Stream::Create(0));
  Event start = Take(Event::Create(0, EventTiming::kEnabled));
  Event end = Take(Event::Create(0, EventTiming::kEnabled));
  DeviceBuffer buffer = Take(DeviceBuffer::Allocate(1 << 20, 0));
  EXPECT_TRUE(start.Record(stream.view()).ok());
  EXPECT_TRUE(FillAsync(buffer.data(), std::byte{1}, buffer.size_bytes(), stream.view()).ok());
  EXPECT_TRUE(end.Record(stream.view()).ok());
  EXPECT_TRUE(other.view().WaitFor(end).ok());
  EXPECT_TRUE(other.view().Synchronize().ok());
  EXPECT_TRUE(Take(end.IsDone()));
  EXPECT_TRUE(Take(stream.view().IsIdle()));
  EXPECT_GE(Take(ElapsedMs(start, end)), 0.0F);
}

TEST(DeviceGuardTest, RestoresThePreviousDeviceAndReportsABadOne) {
  int before = -1;
  ASSERT_EQ(cudaGetDevice(&before), cudaSuccess);
  {
    DeviceGuard bad(Take(DeviceCount()));
    EXPECT_FALSE(bad.status().ok());
  }
  int after = -1;
  ASSERT_EQ(cudaGetDevice(&after), cudaSuccess);
  EXPECT_EQ(before, after);
}

TEST(MappedMemoryTest, KernelsWorkInPlaceOnMappedPinnedMemory) {
  Stream stream = Take(Stream::Create(0));
  PinnedBuffer x = Take(PinnedBuffer::Allocate(16, PinnedMapping::kMapped));
  PinnedBuffer unmapped = Take(PinnedBuffer::Allocate(16));
  EXPECT_EQ(unmapped.device_data().status().code(), StatusCode::kUnsupported);
  const float values[] = {1.0F, 2.0F, 3.0F, 4.0F};
  std::memcpy(x.data(), values, sizeof(values));
  RmsNormForwardArgs args;
  args.x = Take(x.device_data());
  args.y = const_cast<void*>(args.x);
  args.rows = 1;
  args.hidden_size = 4;
  EXPECT_TRUE(RmsNormForward(args, {}, stream.view().handle()).ok());
  EXPECT_TRUE(stream.view().Synchronize().ok());
  float y[4];
  std::memcpy(y, x.data(), sizeof(y));
  EXPECT_NEAR(y[0], 0.3651483F, 1e-6F);
  EXPECT_NEAR(y[3], 1.4605934F, 1e-6F);
}

}  // namespace
}  // namespace norm::cuda
