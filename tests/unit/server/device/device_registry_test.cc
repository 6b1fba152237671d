#include "server/device/device_registry.h"

#include <gmock/gmock.h>

#include "server/device/copy_bandwidth.h"

namespace norm::server {
namespace {

using testing::HasSubstr;

TEST(DeviceRegistryTest, CpuIsAlwaysThere) {
  const auto found = FindDevices(DeviceSelection::kCpu);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->devices.size(), 1);
  const DeviceFacts& cpu = found->devices[0];
  EXPECT_EQ(cpu.kind, DeviceKind::kCpu);
  EXPECT_EQ(cpu.name, "cpu");
  EXPECT_GE(cpu.multiprocessors, 1);
  EXPECT_EQ(cpu.memory_bytes, 0);
  EXPECT_EQ(cpu.compute_capability, 0);
}

TEST(DeviceRegistryTest, CudaAloneIsOneLineWhenThereIsNone) {
  const auto found = FindDevices(DeviceSelection::kCuda);
  if (found.ok()) {
    EXPECT_EQ(found->devices[0].kind, DeviceKind::kCuda);
    return;
  }
  EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("--device=cuda"));
  EXPECT_EQ(found.status().message().find('\n'), absl::string_view::npos);
}

TEST(DeviceRegistryTest, AutoFallsBackToTheCpuAndSaysWhy) {
  const auto found = FindDevices(DeviceSelection::kAuto);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_FALSE(found->devices.empty());
  if (found->devices[0].kind == DeviceKind::kCpu) {
    ASSERT_GE(found->notes.size(), 2U);
    EXPECT_THAT(found->notes.back(), HasSubstr("no usable GPU: the CPU backend serves"));
  }
}

TEST(DeviceRegistryTest, MakesOneExecutorPerDevice) {
  Metrics metrics({"cpu"}, BatchCloseReasonNames());
  const auto found = FindDevices(DeviceSelection::kCpu);
  ASSERT_TRUE(found.ok());
  DeviceOptions options;
  options.cpu_slots = 3;
  options.cpu_memory_bytes = 1 << 20;
  const auto registry = DeviceRegistry::Create(found->devices, options, metrics);
  ASSERT_TRUE(registry.ok()) << registry.status();
  ASSERT_EQ((*registry)->executors().size(), 1);
  EXPECT_EQ((*registry)->executors()[0]->device_name(), "cpu");
  EXPECT_EQ((*registry)->executors()[0]->slots(), 3);
  EXPECT_LE((*registry)->executors()[0]->max_batch_bytes(), 1 << 20);
  EXPECT_TRUE((*registry)->healthy(0));
  EXPECT_TRUE((*registry)->any_healthy());
  const auto page_locked = (*registry)->PageLockedMemory(1 << 20);
  ASSERT_TRUE(page_locked.ok());
  EXPECT_EQ(*page_locked, nullptr) << "no GPU copies from it";
  EXPECT_GT((*registry)->devices()[0].start_up, absl::ZeroDuration());
}

TEST(CopyBandwidthTest, IsPlausible) {
  const double bandwidth = MeasureHostCopyBandwidth(1);
  EXPECT_GT(bandwidth, 1e7);
  EXPECT_LT(bandwidth, 1e13);
}

}  // namespace
}  // namespace norm::server
