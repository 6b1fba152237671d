// Against a library of the driver's name that stands in for it (fake_nvml.cc).
#include "server/device/nvml_device.h"

#include <gtest/gtest.h>

namespace norm::server {
namespace {

TEST(NvmlDeviceTest, ReadsWhatTheLibraryTellsInBaseUnits) {
  const NvmlDevice card("0000:3b:00.0");
  ASSERT_TRUE(card.found());
  EXPECT_EQ(card.uuid(), "GPU-0f00-ba");
  const GpuReading reading = card.Read();
  EXPECT_EQ(reading.utilization, 0.42);
  EXPECT_EQ(reading.memory_total_bytes, 150.0 * (1 << 30));
  EXPECT_EQ(reading.memory_used_bytes, 40.0 * (1 << 30));
  EXPECT_EQ(reading.power_watts, 123.456);
  EXPECT_EQ(reading.temperature_celsius, 61);
  EXPECT_FALSE(reading.power_limit_watts.has_value());
}

TEST(NvmlDeviceTest, ACardThatTheLibraryDoesNotKnowIsNotFound) {
  EXPECT_FALSE(NvmlDevice("0000:00:00.0").found());
}

}  // namespace
}  // namespace norm::server
