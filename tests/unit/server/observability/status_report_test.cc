#include "server/observability/status_report.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "nlohmann/json.hpp"

namespace norm::server {
namespace {

using nlohmann::json;

json Status(const Metrics& metrics, const std::vector<DeviceStatus>& devices,
            absl::Time now = absl::Now()) {
  return json::parse(StatusJson(*metrics.impl(), devices, now));
}

DeviceStatus Cpu() {
  return {.model = "x86-64 AVX2", .healthy = [] { return true; }};
}

TEST(StatusReportTest, SaysWhatRunsAndSinceWhen) {
  const Metrics metrics(
      {.device_names = {"cpu"}, .close_reasons = {}, .build = {"1.2.3", "GNU 12", "90 100"}});
  const json now = Status(metrics, {Cpu()});
  const json later =
      Status(metrics, {Cpu()},
             absl::UnixEpoch() + absl::Seconds(now["unix_time_seconds"].get<double>() + 60));
  EXPECT_EQ(now["version"], "1.2.3");
  EXPECT_EQ(now["build"], "GNU 12");
  EXPECT_EQ(now["cuda_architectures"], "90 100");
  EXPECT_EQ(now["backend"], "cpu");
  EXPECT_EQ(now["state"], "starting");
  EXPECT_EQ(now["draining"], false);
  EXPECT_EQ(now["recording"], true);
  EXPECT_NEAR(later["uptime_seconds"].get<double>() - now["uptime_seconds"].get<double>(), 60,
              1e-3);
}

TEST(StatusReportTest, TotalsAreThoseOfTheCounters) {
  Metrics metrics({"cpu"}, {"slot_free"});
  metrics.RecordRequest(Op::kRmsNorm, Direction::kForward, DType::kF32, absl::StatusCode::kOk,
                        absl::Microseconds(12));
  metrics.RecordRequest(Op::kLayerNorm, Direction::kBackward, DType::kBF16, absl::StatusCode::kOk,
                        absl::Seconds(20));
  metrics.RecordRequest(Op::kLayerNorm, Direction::kForward, DType::kBF16,
                        absl::StatusCode::kInternal, absl::Seconds(1));
  metrics.RecordRejected(RejectReason::kQueueFull);
  metrics.RecordTransport(TransportKind::kGrpc, 100, 40);
  metrics.RecordStage(Stage::kKernel, absl::Microseconds(25));
  metrics.SetQueue(3, 5, 4096);
  metrics.SetAdmissionLimits(77, 8192);
  metrics.SetServingState(ServingState::kServing);
  const json status = Status(metrics, {Cpu()});
  EXPECT_EQ(status["state"], "serving");
  EXPECT_EQ(status["requests"], (json{{"ok", 2}, {"failed", 1}, {"rejected", 1}}));
  EXPECT_EQ(status["bytes"], (json{{"in", 100}, {"out", 40}}));
  EXPECT_EQ(status["queue"], (json{{"requests", 3},
                                   {"requests_limit", 77},
                                   {"in_flight_requests", 5},
                                   {"in_flight_bytes", 4096},
                                   {"in_flight_bytes_limit", 8192},
                                   {"unsent_bytes", 0},
                                   {"streams", 0}}));
  const json& latency = status["latency"];
  const auto bounds = latency["bounds_seconds"].get<std::vector<double>>();
  const auto all = latency["request"].get<std::vector<int>>();
  const auto kernel = latency["kernel"].get<std::vector<int>>();
  ASSERT_EQ(all.size(), bounds.size() + 1);
  ASSERT_EQ(kernel.size(), bounds.size() + 1);
  for (size_t i = 0; i < bounds.size(); ++i) {
    EXPECT_EQ(all[i], bounds[i] >= 12e-6 ? 1 : 0) << bounds[i];
    EXPECT_EQ(kernel[i], bounds[i] >= 25e-6 ? 1 : 0) << bounds[i];
  }
  EXPECT_EQ(all.back(), 2);  // 20 s are above the last bound
  EXPECT_EQ(kernel.back(), 1);
  for (const char* stage : {"decode", "queue", "copy_in", "copy_out", "encode", "send"}) {
    EXPECT_EQ(latency[stage].get<std::vector<int>>(), std::vector<int>(bounds.size() + 1, 0));
  }
}

TEST(StatusReportTest, DevicesHaveHealthCardAndPools) {
  Metrics metrics({"cuda:0", "cuda:1"}, {"slot_free"});
  metrics.RecordExecution({.op = Op::kRmsNorm,
                           .direction = Direction::kForward,
                           .dtype = DType::kF32,
                           .device_index = 1,
                           .close_reason = "slot_free",
                           .requests = 2,
                           .rows = 7,
                           .kernel_bytes = 3000,
                           .kernel_time = absl::Microseconds(2)});
  metrics.AddSlotBusy(1, absl::Milliseconds(250));
  metrics.SetDeviceCopyBandwidth(1, 4e12);
  metrics.SetDeviceLimits(1, {.slots = 3, .pinned_pool_bytes = 10, .device_pool_bytes = 20});
  metrics.SetPinnedPool(1, 1, 2);
  metrics.SetDevicePool(1, 3, 4);
  metrics.SetGpuReader(1, "GPU-1", [] {
    GpuReading reading;
    reading.utilization = 0.25;
    reading.temperature_celsius = 61;
    return reading;
  });
  ASSERT_TRUE(metrics.StopGpuReaders(absl::Minutes(1)).empty());
  const DeviceStatus lost = {
      .model = "NVIDIA H200", .gpu = true, .memory_bytes = 150, .healthy = [] { return false; }};
  const json status = Status(metrics, {lost, lost});
  EXPECT_EQ(status["backend"], "cuda");
  ASSERT_EQ(status["devices"].size(), 2U);
  EXPECT_TRUE(status["devices"][0]["gpu"].is_null());
  EXPECT_TRUE(status["devices"][0]["device_pool"].is_null());
  json second = status["devices"][1];
  EXPECT_GE(second["gpu"]["age_seconds"].get<double>(), 0);
  second["gpu"].erase("age_seconds");
  EXPECT_EQ(second["gpu"],
            (json{{"uuid", "GPU-1"}, {"utilization", 0.25}, {"temperature_celsius", 61.0}}));
  second.erase("gpu");
  EXPECT_EQ(second["slot_busy_seconds"].get<double>(), 0.25);
  EXPECT_NEAR(second["kernel_seconds"].get<double>(), 2e-6, 1e-12);
  second.erase("slot_busy_seconds");
  second.erase("kernel_seconds");
  EXPECT_EQ(second, (json{{"name", "cuda:1"},
                          {"model", "NVIDIA H200"},
                          {"healthy", false},
                          {"memory_bytes", 150},
                          {"slots", 3},
                          {"executions", 1},
                          {"rows", 7},
                          {"kernel_bytes", 3000},
                          {"copy_bandwidth", 4e12},
                          {"pinned_pool", {{"used", 1}, {"free", 2}, {"limit", 10}}},
                          {"device_pool", {{"used", 3}, {"free", 4}, {"limit", 20}}}}));
}

TEST(StatusReportTest, TextsOfCallersStayTexts) {
  Metrics metrics({"cpu"}, {});
  metrics.RecordError(absl::FromUnixSeconds(1000), "</script><script>x\"\n\xff",
                      absl::PermissionDeniedError("a\tb"));
  const json status = Status(metrics, {Cpu()});
  EXPECT_EQ(status["errors"], (json::array({{{"unix_time_seconds", 1000.0},
                                             {"code", "PERMISSION_DENIED"},
                                             {"method", "</script><script>x\"\n\uFFFD"},
                                             {"message", "a\tb"},
                                             {"count", 1}}})));
}

TEST(StatusReportTest, WithoutRecordingNoErrorIsKept) {
  Metrics metrics({.device_names = {"cpu"}, .close_reasons = {}, .build = {}, .recording = false});
  metrics.RecordError(absl::Now(), "Normalize", absl::InternalError("x"));
  const json status = Status(metrics, {Cpu()});
  EXPECT_EQ(status["recording"], false);
  EXPECT_TRUE(status["errors"].empty());
}

}  // namespace
}  // namespace norm::server
