#include "server/observability/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/text_serializer.h"
#include "server/observability/metrics_impl.h"

namespace norm::server {
namespace {

std::string Scrape(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.impl()->Collect());
}

size_t Lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// The value of the series that starts with `series`, or -1.
double ValueOf(const std::string& text, const std::string& series) {
  const size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? -1.0 : std::stod(text.substr(at + series.size() + 2));
}

TEST(MetricsTest, CountsRequestsByKindAndCode) {
  Metrics metrics({"cpu"}, {"slot_free"});
  metrics.RecordRequest(Op::kLayerNorm, Direction::kBackward, DType::kBF16, absl::StatusCode::kOk,
                        absl::Microseconds(40));
  metrics.RecordRequest(Op::kLayerNorm, Direction::kBackward, DType::kBF16,
                        absl::StatusCode::kUnavailable, absl::Microseconds(40));
  metrics.RecordMalformed(Direction::kForward);
  const std::string text = Scrape(metrics);
  EXPECT_EQ(ValueOf(text,
                    "normd_requests_total{op=\"layer_norm\",direction=\"backward\",dtype=\"bf16\","
                    "code=\"OK\"}"),
            1);
  EXPECT_EQ(ValueOf(text,
                    "normd_requests_total{op=\"layer_norm\",direction=\"backward\",dtype=\"bf16\","
                    "code=\"UNAVAILABLE\"}"),
            1);
  EXPECT_EQ(ValueOf(text,
                    "normd_requests_total{op=\"unknown\",direction=\"forward\",dtype=\"unknown\","
                    "code=\"INVALID_ARGUMENT\"}"),
            1);
  const Metrics::Totals totals = metrics.totals();
  EXPECT_EQ(totals.requests_ok, 1U);
  EXPECT_EQ(totals.requests_failed, 2U);
}

TEST(MetricsTest, SeriesCountStaysTheSameAfterTenThousandOddRequests) {
  Metrics metrics({"cpu"}, {"slot_free", "rows"});
  const size_t before = Lines(Scrape(metrics));
  for (int i = 0; i < 10000; ++i) {
    metrics.RecordRequest(static_cast<Op>(i % kOpCount), static_cast<Direction>(i % 2),
                          static_cast<DType>(i % kDTypeCount),
                          static_cast<absl::StatusCode>(i % 30), absl::Nanoseconds(i * 977));
    ExecutionRecord record;
    record.op = static_cast<Op>(i % kOpCount);
    record.direction = static_cast<Direction>(i % 2);
    record.dtype = static_cast<DType>(i % kDTypeCount);
    record.device_index = i % 3;  // only 0 exists
    record.close_reason = i % 2 == 0 ? "rows" : "a reason nobody declared";
    record.requests = i;
    record.rows = int64_t{1} << (i % 60);
    metrics.RecordExecution(record);
  }
  EXPECT_EQ(Lines(Scrape(metrics)), before);
}

TEST(MetricsTest, LatencyBucketsResolveMicrosecondsAndSeconds) {
  Metrics metrics({"cpu"}, {});
  for (int i = 0; i < 1000; ++i) {
    metrics.RecordRequest(Op::kRmsNorm, Direction::kForward, DType::kF32, absl::StatusCode::kOk,
                          absl::Microseconds(95));
  }
  for (int i = 0; i < 100; ++i) {
    metrics.RecordRequest(Op::kRmsNorm, Direction::kForward, DType::kF32, absl::StatusCode::kOk,
                          absl::Microseconds(9500));
  }
  const std::string text = Scrape(metrics);
  const std::string series =
      "normd_request_seconds_bucket{op=\"rms_norm\",direction=\"forward\",le=\"";
  EXPECT_EQ(ValueOf(text, series + "5e-05\"}"), 0);
  EXPECT_EQ(ValueOf(text, series + "0.0001\"}"), 1000);
  EXPECT_EQ(ValueOf(text, series + "0.005\"}"), 1000);
  EXPECT_EQ(ValueOf(text, series + "0.01\"}"), 1100);
  EXPECT_EQ(ValueOf(text, series + "+Inf\"}"), 1100);
  for (size_t i = 1; i < kLatencyBounds.size(); ++i) {
    EXPECT_LE(kLatencyBounds[i], 2.0 * kLatencyBounds[i - 1]);
  }
}

/// Of values at, beside and between all bounds, and outside: the buckets are those of a search.
template <const auto& kBounds>
void ExpectBuckets() {
  std::vector<double> values = {-1, 0, 1e-300, kBounds.front() / 3, kBounds.back() * 1.5, 1e300};
  for (const double bound : kBounds) {
    for (const double value :
         {std::nextafter(bound, 0), bound, std::nextafter(bound, 1e300), bound * 1.01})
      values.push_back(value);
  }
  for (const double value : values) {
    AtomicHistogram<kBounds, 1> histogram;
    histogram.Observe(std::min(value, 1e9));  // sums have 64 bits
    prometheus::ClientMetric::Histogram total;
    histogram.AddTo(total);
    for (size_t i = 0; i < kBounds.size(); ++i)
      EXPECT_EQ(total.bucket[i].cumulative_count, value <= kBounds[i] ? 1U : 0U) << value;
    EXPECT_EQ(total.sample_count, 1U) << value;
  }
}

TEST(MetricsTest, EachValueFallsIntoTheFirstBucketThatHoldsIt) {
  ExpectBuckets<kLatencyBounds>();
  ExpectBuckets<kBatchRequestBounds>();
  ExpectBuckets<kBatchRowBounds>();
  ExpectBuckets<kRatioBounds>();
}

TEST(MetricsTest, KernelBandwidthIsTheShareOfTheCopyBandwidth) {
  Metrics metrics({"cpu"}, {"single"});
  metrics.SetDeviceCopyBandwidth(0, 1e9);
  ExecutionRecord record;
  record.op = Op::kBatchNorm;
  record.direction = Direction::kForward;
  record.dtype = DType::kF32;
  record.close_reason = "single";
  record.requests = 1;
  record.rows = 7;
  record.kernel_bytes = 750'000;
  record.input_bytes = 512;
  record.output_bytes = 256;
  record.kernel_time = absl::Milliseconds(1);
  metrics.RecordExecution(record);
  const std::string text = Scrape(metrics);
  EXPECT_EQ(ValueOf(text, "normd_device_copy_bandwidth_bytes_per_second{device=\"cpu\"}"), 1e9);
  EXPECT_EQ(ValueOf(text, "normd_device_bytes_total{device=\"cpu\",way=\"in\"}"), 512);
  EXPECT_EQ(ValueOf(text, "normd_device_bytes_total{device=\"cpu\",way=\"out\"}"), 256);
  const std::string labels =
      "{op=\"batch_norm\",direction=\"forward\",dtype=\"f32\",device=\"cpu\"}";
  EXPECT_EQ(ValueOf(text, "normd_executions_total" + labels), 1);
  EXPECT_EQ(ValueOf(text, "normd_rows_total" + labels), 7);
  EXPECT_EQ(ValueOf(text, "normd_kernel_bytes_total" + labels), 750'000);
  EXPECT_DOUBLE_EQ(ValueOf(text, "normd_kernel_seconds_total" + labels), 1e-3);
  EXPECT_EQ(ValueOf(text, "normd_kernel_bandwidth_ratio_bucket{device=\"cpu\",le=\"0.7\"}"), 0);
  EXPECT_EQ(ValueOf(text, "normd_kernel_bandwidth_ratio_bucket{device=\"cpu\",le=\"0.8\"}"), 1);
  EXPECT_EQ(ValueOf(text, "normd_batch_close_total{device=\"cpu\",reason=\"single\"}"), 1);
  EXPECT_EQ(metrics.totals().rows, 7U);
}

TEST(MetricsTest, LosesNothingUnderConcurrentRecording) {
  Metrics metrics({"cpu"}, {});
  constexpr int kThreads = 4;
  constexpr int kEach = 20000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < kEach; ++i) {
        metrics.RecordRequest(Op::kRmsNorm, Direction::kForward, DType::kF32, absl::StatusCode::kOk,
                              absl::Microseconds(i % 100));
        metrics.RecordTransport(TransportKind::kGrpc, 3, 5);
      }
    });
  }
  for (int i = 0; i < 20; ++i) Scrape(metrics);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.totals().requests_ok, static_cast<uint64_t>(kThreads) * kEach);
  EXPECT_EQ(metrics.totals().bytes_in, static_cast<uint64_t>(kThreads) * kEach * 3);
  EXPECT_EQ(metrics.totals().bytes_out, static_cast<uint64_t>(kThreads) * kEach * 5);
}

TEST(MetricsTest, ThreadsOfAllShardsAreAddedUp) {
  Metrics metrics({"cpu"}, {});
  // More threads than shards, one after another: each gets the next shard.
  constexpr int kThreads = 40;
  for (int t = 0; t < kThreads; ++t) {
    std::thread([&metrics] {
      metrics.RecordStage(Stage::kSend, absl::Milliseconds(2));
      metrics.RecordRejected(RejectReason::kDeadline);
      metrics.RecordCancelled(Stage::kQueue);
      metrics.RecordDeadlineExceeded(Stage::kDecode);
      metrics.RecordMalformed(Direction::kBackward);
    }).join();
  }
  const std::string text = Scrape(metrics);
  EXPECT_EQ(ValueOf(text, "normd_stage_seconds_count{stage=\"send\"}"), kThreads);
  EXPECT_DOUBLE_EQ(ValueOf(text, "normd_stage_seconds_sum{stage=\"send\"}"), 0.08);
  EXPECT_EQ(ValueOf(text, "normd_stage_seconds_bucket{stage=\"send\",le=\"0.0015\"}"), 0);
  EXPECT_EQ(ValueOf(text, "normd_stage_seconds_bucket{stage=\"send\",le=\"0.002\"}"), kThreads);
  EXPECT_EQ(ValueOf(text, "normd_rejected_total{reason=\"deadline\"}"), kThreads);
  EXPECT_EQ(ValueOf(text, "normd_cancelled_total{stage=\"queue\"}"), kThreads);
  EXPECT_EQ(ValueOf(text, "normd_deadline_exceeded_total{stage=\"decode\"}"), kThreads);
  EXPECT_EQ(metrics.totals().requests_failed, static_cast<uint64_t>(kThreads));
  EXPECT_EQ(metrics.totals().send.requests, static_cast<uint64_t>(kThreads));
}

TEST(MetricsTest, WithoutRecordingOnlyGaugesMove) {
  Metrics metrics({.device_names = {"cpu"}, .close_reasons = {"rows"}, .recording = false});
  const std::string before = Scrape(metrics);
  metrics.RecordRequest(Op::kRmsNorm, Direction::kForward, DType::kF32, absl::StatusCode::kOk,
                        absl::Milliseconds(1));
  metrics.RecordStage(Stage::kKernel, absl::Milliseconds(1));
  ExecutionRecord record;
  record.close_reason = "rows";
  record.requests = 1;
  metrics.RecordExecution(record);
  metrics.AddSlotBusy(0, absl::Seconds(1));
  metrics.RecordTransport(TransportKind::kGrpc, 3, 5);
  metrics.SetQueue(3, 5, 4096);
  const std::string after = Scrape(metrics);
  EXPECT_EQ(ValueOf(after, "normd_queue_requests"), 3);
  EXPECT_EQ(metrics.totals().requests_ok, 0U);
  EXPECT_EQ(metrics.totals().bytes_in, 0U);
  EXPECT_EQ(ValueOf(after, "normd_stage_seconds_count{stage=\"kernel\"}"), 0);
  EXPECT_EQ(ValueOf(after, "normd_slot_busy_seconds_total{device=\"cpu\"}"), 0);
  EXPECT_EQ(ValueOf(after, "normd_batch_requests_count{device=\"cpu\"}"), 0);
}

TEST(MetricsTest, WhatOnlyAGpuMovesIsThereForGpusOnly) {
  Metrics metrics({"cpu", "cuda:0"}, {});
  metrics.SetDeviceLimits(0, {.slots = 2, .pinned_pool_bytes = 100});
  for (const char* absent : {"normd_device_pool_bytes", "normd_cuda_errors_total", "nv_gpu_",
                             "normd_connections", "normd_receive_memory_bytes"}) {
    EXPECT_EQ(Scrape(metrics).find(absent), std::string::npos) << absent;
  }
  metrics.SetDeviceLimits(1, {.slots = 3, .pinned_pool_bytes = 200, .device_pool_bytes = 300});
  metrics.RecordCudaError(CudaErrorKind::kRefused);
  metrics.RecordCudaError(CudaErrorKind::kMemoryFault);
  const std::string text = Scrape(metrics);
  EXPECT_EQ(ValueOf(text, "normd_slots{device=\"cpu\"}"), 2);
  EXPECT_EQ(ValueOf(text, "normd_slots{device=\"cuda:0\"}"), 3);
  EXPECT_EQ(ValueOf(text, "normd_pinned_pool_limit_bytes{device=\"cpu\"}"), 100);
  EXPECT_EQ(ValueOf(text, "normd_device_pool_limit_bytes{device=\"cuda:0\"}"), 300);
  EXPECT_EQ(text.find("normd_device_pool_limit_bytes{device=\"cpu\"}"), std::string::npos);
  EXPECT_EQ(ValueOf(text, "normd_cuda_errors_total{kind=\"refused\",sticky=\"false\"}"), 1);
  EXPECT_EQ(ValueOf(text, "normd_cuda_errors_total{kind=\"memory_fault\",sticky=\"true\"}"), 1);
  EXPECT_EQ(ValueOf(text, "normd_cuda_errors_total{kind=\"hardware\",sticky=\"true\"}"), 0);
}

TEST(MetricsTest, ConnectionsAreCountedAtEachScrape) {
  Metrics metrics({"cuda:0"}, {});
  int64_t connections = 0;
  metrics.SetConnectionsReader([&connections] { return ++connections; });
  metrics.SetReceiveMemoryReader(
      [&connections] { return MemoryUse{.used_bytes = 10 * connections, .free_bytes = 7}; });
  Scrape(metrics);
  const std::string text = Scrape(metrics);
  EXPECT_EQ(ValueOf(text, "normd_connections"), 2);
  EXPECT_EQ(ValueOf(text, "normd_receive_memory_bytes{state=\"used\"}"), 20);
  EXPECT_EQ(ValueOf(text, "normd_receive_memory_bytes{state=\"free\"}"), 7);
}

TEST(MetricsTest, CardsHaveWhatTheirDriverTells) {
  Metrics metrics({"cuda:0", "cpu", "cuda:1"}, {});
  metrics.SetGpuReader(0, "GPU-1", [] {
    GpuReading reading;
    reading.utilization = 0.25;
    reading.memory_used_bytes = 2e9;
    reading.temperature_celsius = 61;
    return reading;
  });
  metrics.SetGpuReader(2, "GPU-2", [] {
    GpuReading reading;
    reading.memory_used_bytes = 3e9;
    return reading;
  });
  ASSERT_TRUE(metrics.StopGpuReaders(absl::Minutes(1)).empty());
  const std::string text = Scrape(metrics);
  EXPECT_EQ(ValueOf(text, "nv_gpu_utilization{gpu_uuid=\"GPU-1\"}"), 0.25);
  EXPECT_EQ(text.find("nv_gpu_utilization{gpu_uuid=\"GPU-2\"}"), std::string::npos);
  EXPECT_EQ(ValueOf(text, "nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-1\"}"), 2e9);
  EXPECT_EQ(ValueOf(text, "nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-2\"}"), 3e9);
  EXPECT_EQ(ValueOf(text, "nv_gpu_temperature_celsius{gpu_uuid=\"GPU-1\"}"), 61);
  EXPECT_EQ(text.find("nv_gpu_power_usage"), std::string::npos);
  EXPECT_GE(ValueOf(text, "normd_gpu_reading_age_seconds{gpu_uuid=\"GPU-2\"}"), 0);
}

TEST(MetricsTest, ProcessUsageIsOfThisProcess) {
  Metrics metrics({"cpu"}, {});
  const std::string text = Scrape(metrics);
  EXPECT_GT(ValueOf(text, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GE(ValueOf(text, "process_open_fds"), 3);
  EXPECT_GE(ValueOf(text, "process_max_fds"), ValueOf(text, "process_open_fds"));
  EXPECT_GE(ValueOf(text, "process_threads"), 1);
  EXPECT_GE(ValueOf(text, "process_cpu_seconds_total"), 0);
}

TEST(MetricsTest, GaugesFollowTheirOwners) {
  Metrics metrics(
      {.device_names = {"cuda:0", "cuda:1"}, .close_reasons = {}, .build = {"1.2.3", "gcc", "90"}});
  metrics.SetQueue(3, 5, 4096);
  metrics.SetAdmissionLimits(77, 1 << 20);
  metrics.SetPinnedPool(1, 10, 20);
  metrics.SetServingState(ServingState::kServing);
  metrics.AddStreams(2);
  metrics.AddStreams(-1);
  const std::string text = Scrape(metrics);
  EXPECT_EQ(ValueOf(text, "normd_queue_requests"), 3);
  EXPECT_EQ(ValueOf(text, "normd_in_flight_bytes"), 4096);
  EXPECT_EQ(ValueOf(text, "normd_in_flight_bytes_limit"), 1 << 20);
  EXPECT_EQ(ValueOf(text, "normd_queue_requests_limit"), 77);
  EXPECT_EQ(ValueOf(text, "normd_pinned_pool_bytes{device=\"cuda:1\",state=\"used\"}"), 10);
  EXPECT_EQ(ValueOf(text, "normd_pinned_pool_bytes{device=\"cuda:1\",state=\"free\"}"), 20);
  EXPECT_EQ(ValueOf(text, "normd_ready"), 1);
  EXPECT_EQ(ValueOf(text, "normd_draining"), 0);
  EXPECT_EQ(ValueOf(text, "normd_streams"), 1);
  EXPECT_EQ(ValueOf(text,
                    "normd_build_info{version=\"1.2.3\",compiler=\"gcc\","
                    "cuda_architectures=\"90\"}"),
            1);
}

}  // namespace
}  // namespace norm::server
