// What norm_soak makes of a server's metrics.
#include "tests/integration/server_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prometheus/text_serializer.h"
#include "server/observability/metrics.h"
#include "server/observability/metrics_impl.h"

namespace norm::test {
namespace {

TEST(ServerMemoryTest, ReadsWhatTheServerWrites) {
  server::Metrics metrics({"cuda:0", "cuda:1"}, {});
  metrics.SetPinnedPool(0, 3 << 20, 5 << 20);
  metrics.SetPinnedPool(1, 0, 1 << 20);
  metrics.SetDeviceLimits(1, {.device_pool_bytes = 4 << 20});
  metrics.SetDevicePool(1, 2 << 20, 1 << 19);
  metrics.SetQueue(0, 1, 7 << 20);
  metrics.SetAdmissionLimits(1, 64 << 20);
  const auto sample =
      ParseMemory(prometheus::TextSerializer().Serialize(metrics.impl()->Collect()));
  ASSERT_TRUE(sample.has_value());
  EXPECT_EQ(sample->pinned, 9);
  EXPECT_EQ(sample->device_pool, 2.5);
  EXPECT_EQ(sample->in_flight, 7);
  EXPECT_EQ(sample->in_flight_limit, 64);
  EXPECT_GT(sample->rss, 1);
  EXPECT_EQ(sample->gpu, -1);
  EXPECT_FALSE(ParseMemory("").has_value());
  EXPECT_FALSE(ParseMemory("HTTP/1.1 503 Service Unavailable").has_value());
}

TEST(ServerMemoryTest, GrowthIsThatSinceItSettled) {
  std::vector<MemorySample> samples(5);
  const double rss[] = {10, 50, 90, 60, 55};
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].rss = rss[i];
    samples[i].in_flight = 4;
    samples[i].in_flight_limit = 4;
  }
  const nlohmann::json report = MemoryReport(samples, 1, 5);
  EXPECT_EQ(report["rss_mib"]["settled"], 50);
  EXPECT_EQ(report["rss_mib"]["last"], 55);
  EXPECT_EQ(report["rss_mib"]["largest"], 90);
  EXPECT_TRUE(report["within_limits"].get<bool>());
  EXPECT_FALSE(MemoryReport(samples, 1, 4.5)["within_limits"].get<bool>());
  EXPECT_TRUE(MemoryReport(samples, 1, 0)["within_limits"].get<bool>());
  EXPECT_FALSE(MemoryReport(samples, 0, 44)["within_limits"].get<bool>());
  for (double MemorySample::*member :
       {&MemorySample::pinned, &MemorySample::device_pool, &MemorySample::gpu}) {
    std::vector<MemorySample> grown = samples;
    grown.back().*member += 100;
    EXPECT_FALSE(MemoryReport(grown, 1, 99)["within_limits"].get<bool>());
  }
  samples[2].in_flight = 4.5;
  EXPECT_FALSE(MemoryReport(samples, 1, 0)["within_limits"].get<bool>());
}

TEST(ServerMemoryTest, GpuMemoryIsThatOfTheServerWhereItIsKnown) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "server_memory";
  std::filesystem::create_directories(folder);
  const std::filesystem::path tool = folder / "nvidia-smi";
  std::ofstream(tool)
      << "#!/bin/sh\n"
         "case \"$1\" in\n"
         "--query-compute-apps=pid,used_memory) printf '12, 500\\n123, 30\\n12, 6\\n' ;;\n"
         "*) printf '900\\n1000\\n' ;;\n"
         "esac\n";
  std::filesystem::permissions(tool, std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", absl::StrCat(folder.string(), ":", path).c_str(), 1);
  setenv("NORMD_PID", "12", 1);
  EXPECT_EQ(GpuMemory(), 506);
  setenv("NORMD_PID", "13", 1);
  EXPECT_EQ(GpuMemory(), 1900);
  unsetenv("NORMD_PID");
  EXPECT_EQ(GpuMemory(), 1900);
  setenv("PATH", path.c_str(), 1);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace norm::test
