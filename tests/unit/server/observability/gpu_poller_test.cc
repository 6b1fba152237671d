// Cards whose driver answers, is slow, or never returns.
#include "server/observability/gpu_poller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "prometheus/text_serializer.h"
#include "server/observability/gpu_readers_end.h"
#include "server/observability/metrics_endpoint.h"
#include "server/observability/metrics_impl.h"
#include "tests/support/http_get.h"

namespace norm::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// A driver whose n-th call returns n watts, once it may.
class FakeDriver {
 public:
  GpuReading Read() {
    std::unique_lock lock(mutex_);
    const int call = ++begun_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return call <= allowed_; });
    GpuReading reading;
    reading.power_watts = call;
    return reading;
  }
  /// The first `calls` calls return.
  void Allow(int calls) {
    const std::lock_guard lock(mutex_);
    allowed_ = calls;
    changed_.notify_all();
  }
  /// The reading of the call before is known by then.
  void AwaitBegun(int calls) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_ >= calls; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int begun_ = 0;
  int allowed_ = 0;
};

constexpr int kAll = 1 << 30;

/// `cards` devices, read without a pause.
MetricsOptions Cards(int cards) {
  MetricsOptions options;
  for (int i = 0; i < cards; ++i) options.device_names.push_back("cuda:" + std::to_string(i));
  options.gpu_interval = absl::ZeroDuration();
  return options;
}

std::string Scrape(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.impl()->Collect());
}

double Age(const Metrics& metrics) {
  const std::string text = Scrape(metrics);
  const std::string series = "\nnormd_gpu_reading_age_seconds{gpu_uuid=\"GPU-1\"} ";
  const size_t at = text.find(series);
  return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size()));
}

TEST(GpuPollerTest, AHangingDriverLeavesTheLastReadingAndItsAge) {
  FakeDriver driver;
  Metrics metrics(Cards(1));
  metrics.SetGpuReader(0, "GPU-1", [&] { return driver.Read(); });
  driver.AwaitBegun(1);
  EXPECT_THAT(Scrape(metrics), Not(HasSubstr("nv_gpu_power_usage")));
  const double before = Age(metrics);
  EXPECT_GE(before, 0);
  driver.Allow(3);
  driver.AwaitBegun(4);
  EXPECT_THAT(Scrape(metrics), HasSubstr("\nnv_gpu_power_usage{gpu_uuid=\"GPU-1\"} 3\n"));
  const double younger = Age(metrics);
  EXPECT_GT(Age(metrics), younger);
  driver.Allow(5);
  driver.AwaitBegun(6);
  EXPECT_THAT(Scrape(metrics), HasSubstr("\nnv_gpu_power_usage{gpu_uuid=\"GPU-1\"} 5\n"));
  driver.Allow(kAll);
}

TEST(GpuPollerTest, ACardThatHangsKeepsNoOtherFromBeingRead) {
  FakeDriver hanging;
  FakeDriver good;
  Metrics metrics(Cards(2));
  metrics.SetGpuReader(0, "GPU-1", [&] { return hanging.Read(); });
  metrics.SetGpuReader(1, "GPU-2", [&] { return good.Read(); });
  hanging.AwaitBegun(1);
  good.Allow(7);
  good.AwaitBegun(8);
  EXPECT_THAT(Scrape(metrics), HasSubstr("\nnv_gpu_power_usage{gpu_uuid=\"GPU-2\"} 7\n"));
  good.Allow(kAll);
  EXPECT_THAT(metrics.StopGpuReaders(absl::Seconds(1)), ElementsAre("GPU-1"));
  hanging.Allow(kAll);
  EXPECT_THAT(metrics.StopGpuReaders(absl::Minutes(1)), ElementsAre());
}

TEST(GpuPollerTest, ThePortAnswersAndClosesWhileTheDriverHangs) {
  FakeDriver driver;
  Metrics metrics(Cards(1));
  metrics.SetGpuReader(0, "GPU-1", [&] { return driver.Read(); });
  driver.AwaitBegun(1);
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", metrics);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_THAT(test::HttpGet((*endpoint)->address(), "/metrics"),
              HasSubstr("normd_gpu_reading_age_seconds{gpu_uuid=\"GPU-1\"}"));
  endpoint->reset();
  driver.Allow(kAll);
}

TEST(GpuPollerDeathTest, AProcessEndsWithItsExitCodeWhileTheDriverHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto serve_and_end = [] {
    FakeDriver driver;
    Metrics metrics(Cards(1));
    metrics.SetGpuReader(0, "GPU-1", [&] { return driver.Read(); });
    driver.AwaitBegun(1);
    EndGpuReaders(metrics, Logger({}), 4);
  };
  EXPECT_EXIT(serve_and_end(), testing::ExitedWithCode(4), "gpu_uuid=GPU-1");
}

TEST(GpuPollerTest, AProcessWhoseDriverAnswersGoesOnToItsOwnEnd) {
  FakeDriver driver;
  driver.Allow(kAll);
  Metrics metrics(Cards(1));
  metrics.SetGpuReader(0, "GPU-1", [&] { return driver.Read(); });
  EndGpuReaders(metrics, Logger({}), 4);
}

}  // namespace
}  // namespace norm::server
