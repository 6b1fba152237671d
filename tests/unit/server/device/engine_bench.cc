// norm_engine_bench: what the serving engine reaches without a network, against PCIe in the same run.
// Every kind of request is checked in float64 before it is timed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "norm/cuda/copy.h"
#include "norm/cuda/device_buffer.h"
#include "norm/cuda/pinned_buffer.h"
#include "norm/cuda/stream.h"
#include "server/device/cuda_batch_executor.h"
#include "server/scheduler/batching_scheduler.h"
#include "tests/unit/server/device/engine_bench_requests.h"

ABSL_FLAG(std::string, parts, "large,small,weights", "What to measure.");
ABSL_FLAG(double, seconds, 0.4, "How long to measure each point of a throughput.");
ABSL_FLAG(bool, sweep, false, "Also the settings that the defaults were chosen from.");
ABSL_FLAG(std::string, json, "", "Where to write the results, one object a row.");

namespace norm::server {
namespace {

using test::BenchInputs;
using test::Check;
using test::Die;
using test::kHidden;
using test::MakeJob;
using test::Must;
using test::Where;

using SteadyClock = std::chrono::steady_clock;

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kLargeRows = 8192;  // 64 MiB of bf16 each way
constexpr int64_t kNever = int64_t{1} << 60;

double Seconds(SteadyClock::time_point since) {
  return std::chrono::duration<double>(SteadyClock::now() - since).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

/// Rows of the report.
class Report {
 public:
  void Add(const std::string& name, double value, const std::string& unit, double ratio = 0) {
    std::printf("%-58s %10.3f %-12s", name.c_str(), value, unit.c_str());
    std::printf(ratio > 0 ? " %6.3f\n" : "\n", ratio);
    std::fflush(stdout);
    absl::StrAppend(&json_, json_.empty() ? "[" : ",\n ",
                    absl::StrFormat(R"({"name": "%s", "value": %.6g, "unit": "%s", "ratio": %.4f})",
                                    name, value, unit, ratio));
  }
  void Write(const std::string& path) const {
    std::FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr) Die(absl::StrCat("cannot write ", path));
    std::fprintf(file, "%s]\n", json_.c_str());
    std::fclose(file);
  }

 private:
  std::string json_;
};

/// An executor behind a scheduler.
class Engine {
 public:
  explicit Engine(const CudaBatchExecutorOptions& options = {})
      : metrics_({"cuda:0"}, BatchCloseReasonNames()) {
    auto executor = CudaBatchExecutor::Create(options, metrics_);
    if (!executor.ok()) Die(std::string(executor.status().message()));
    executor_ = *std::move(executor);
    scheduler_ =
        std::make_unique<BatchingScheduler>(std::vector<BatchExecutor*>{executor_.get()},
                                            BatchingSchedulerOptions(), Clock::Real(), metrics_);
  }

  JobResult RunOne(std::unique_ptr<Job> job) {
    std::binary_semaphore done(0);
    JobResult result;
    job->done = [&](JobResult ended) {
      result = std::move(ended);
      done.release();
    };
    Submit(job);
    done.acquire();
    return result;
  }

  /// Keeps `in_flight` jobs of `make` going on each of `threads`; jobs per second.
  template <typename Make>
  double Throughput(int threads, int in_flight, double seconds, const Make& make) {
    std::vector<std::thread> clients;
    std::atomic<int64_t> finished{0};
    const auto start = SteadyClock::now();
    for (int t = 0; t < threads; ++t) {
      clients.emplace_back([&, t] {
        std::counting_semaphore<> credit(in_flight);
        for (int i = t; Seconds(start) < seconds; i += threads) {
          credit.acquire();
          std::unique_ptr<Job> job = make(i);
          job->done = [&](JobResult result) {
            if (!result.status.ok()) Die(std::string(result.status.message()));
            result = {};
            finished.fetch_add(1);
            credit.release();
          };
          Submit(job);
        }
        for (int i = 0; i < in_flight; ++i) credit.acquire();
      });
    }
    for (std::thread& client : clients) client.join();
    return static_cast<double>(finished.load()) / Seconds(start);
  }

  /// Median seconds of a job alone, from Submit until its result is there; and on the device.
  struct Alone {
    double seconds = 0;
    double kernel_seconds = 0;
  };
  template <typename Make>
  Alone Latency(int calls, const Make& make) {
    std::vector<double> times;
    std::vector<double> kernels;
    for (int i = 0; i < calls + calls / 4; ++i) {
      std::unique_ptr<Job> job = make(i);
      std::binary_semaphore done(0);
      double seconds = 0;
      double kernel = 0;
      const auto start = SteadyClock::now();
      job->done = [&](const JobResult& result) {
        seconds = Seconds(start);  // here the server answers: no other thread is woken for it
        kernel = absl::ToDoubleSeconds(result.timing.kernel);
        done.release();
      };
      Submit(job);
      done.acquire();
      if (i < calls / 4) continue;
      times.push_back(seconds);
      kernels.push_back(kernel);
    }
    return {Median(std::move(times)), Median(std::move(kernels))};
  }

  Metrics::Totals totals() const { return metrics_.totals(); }

 private:
  void Submit(std::unique_ptr<Job>& job) {
    const absl::Status status = scheduler_->Submit(job);
    if (!status.ok()) Die(std::string(status.message()));
  }

  Metrics metrics_;
  std::unique_ptr<CudaBatchExecutor> executor_;
  std::unique_ptr<BatchingScheduler> scheduler_;
};

/// GB/s each way of 64 MiB copies in both directions at once.
double DuplexGbps() {
  constexpr size_t kBytes = 64 * kMib;
  const auto up = Must(cuda::PinnedBuffer::Allocate(kBytes));
  const auto down = Must(cuda::PinnedBuffer::Allocate(kBytes));
  const auto device_up = Must(cuda::DeviceBuffer::Allocate(kBytes, 0));
  const auto device_down = Must(cuda::DeviceBuffer::Allocate(kBytes, 0));
  const auto in = Must(cuda::Stream::Create(0));
  const auto out = Must(cuda::Stream::Create(0));
  std::vector<double> rates;
  for (int round = 0; round < 4; ++round) {
    constexpr int kCopies = 40;
    const auto start = SteadyClock::now();
    for (int i = 0; i < kCopies; ++i) {
      Must(cuda::CopyAsync(device_up.data(), up.data(), kBytes, in.view()));
      Must(cuda::CopyAsync(down.data(), device_down.data(), kBytes, out.view()));
    }
    Must(in.view().Synchronize());
    Must(out.view().Synchronize());
    if (round > 0) rates.push_back(kCopies * static_cast<double>(kBytes) / Seconds(start) / 1e9);
  }
  return Median(rates);
}

void MeasureLarge(Report& report) {
  const BenchInputs first(kLargeRows, 1, 1);
  const BenchInputs second(kLargeRows, 1, 2);
  const double seconds = absl::GetFlag(FLAGS_seconds);
  const auto point = [&](const std::string& name, Where where,
                         const CudaBatchExecutorOptions& options = {}) {
    Engine engine(options);
    // Two inputs in turn: what an earlier request left in a slab is not taken for a result.
    for (const BenchInputs* inputs : {&first, &second, &first, &second}) {
      Check(*inputs, 0, engine.RunOne(MakeJob(*inputs, 0, where)));
    }
    const auto make = [&](int) { return MakeJob(first, 0, where); };
    const int in_flight = 2 * options.slots;
    engine.Throughput(1, in_flight, 0.1, make);
    const double rate = engine.Throughput(1, in_flight, seconds, make);
    const double duplex = DuplexGbps();
    const double gbps = rate * static_cast<double>(kLargeRows * kHidden * 2) / 1e9;
    report.Add(absl::StrCat("64 MiB ", name), gbps, "GB/s a way", gbps / duplex);
    report.Add(absl::StrCat("64 MiB ", name, ", alone"), engine.Latency(16, make).seconds * 1e6,
               "us");
    return duplex;
  };
  report.Add("PCIe duplex, 64 MiB", point("pinned", Where::kPinned), "GB/s a way");
  point("received", Where::kReceived);
  if (!absl::GetFlag(FLAGS_sweep)) return;
  for (const int helpers : {0, 2, 8}) {
    CudaBatchExecutorOptions options;
    options.copy_helpers = helpers;
    point(absl::StrCat("received, ", helpers, " helpers"), Where::kReceived, options);
  }
  for (const int64_t mib : {4, 16}) {
    CudaBatchExecutorOptions options;
    options.ways.slice_bytes = mib * kMib;
    point(absl::StrCat("pinned, slices of ", mib, " MiB"), Where::kPinned, options);
  }
  for (const int slots : {2, 4}) {
    CudaBatchExecutorOptions options;
    options.slots = slots;
    point(absl::StrCat("pinned, ", slots, " slots"), Where::kPinned, options);
  }
}

void MeasureSmall(Report& report) {
  CudaWays mapped;
  mapped.mapped_bytes = kNever;
  CudaWays mapped_output;
  mapped_output.mapped_bytes = 0;
  mapped_output.mapped_output_bytes = kNever;
  CudaWays staged;
  staged.mapped_bytes = staged.mapped_output_bytes = 0;
  constexpr int kWays = 3;
  constexpr const char* kNames[kWays] = {"mapped", "mapped output", "staged"};
  Engine engines[kWays] = {Engine({.ways = mapped}), Engine({.ways = mapped_output}),
                           Engine({.ways = staged})};
  for (const int64_t rows : {1, 4, 8, 16, 32, 64, 128, 256, 512}) {
    const BenchInputs inputs(rows, 1, static_cast<uint32_t>(rows));
    const BenchInputs other(rows, 1, static_cast<uint32_t>(rows + 1000));
    const auto make = [&](int) { return MakeJob(inputs, 0, Where::kReceived); };
    for (int way = 0; way < kWays; ++way) {
      for (const BenchInputs* checked : {&inputs, &other, &inputs}) {
        Check(*checked, 0, engines[way].RunOne(MakeJob(*checked, 0, Where::kReceived)));
      }
    }
    std::vector<double> medians[kWays];
    std::vector<double> kernels[kWays];
    for (int round = 0; round < 5; ++round) {
      for (int way = 0; way < kWays; ++way) {
        const Engine::Alone alone = engines[way].Latency(200, make);
        medians[way].push_back(alone.seconds * 1e6);
        kernels[way].push_back(alone.kernel_seconds * 1e6);
      }
    }
    const double staged_us = Median(medians[kWays - 1]);
    for (int way = 0; way < kWays; ++way) {
      const std::string name = absl::StrCat(rows, "x", kHidden, " alone, ", kNames[way]);
      report.Add(name, Median(medians[way]), "us", Median(medians[way]) / staged_us);
      report.Add(absl::StrCat(name, ", kernel"), Median(kernels[way]), "us");
    }
  }
}

void MeasureWeights(Report& report) {
  constexpr int kSets = 64;
  constexpr int kThreads = 8;
  const BenchInputs inputs(4, kSets, 7);
  const auto point = [&](const std::string& name, int sets, int in_flight, const CudaWays& ways) {
    Engine engine({.ways = ways});
    for (int set = 0; set < sets; ++set) {
      Check(inputs, set, engine.RunOne(MakeJob(inputs, set, Where::kReceived)));
    }
    const auto make = [&](int i) { return MakeJob(inputs, i % sets, Where::kReceived); };
    engine.Throughput(kThreads, in_flight, 0.1, make);
    const Metrics::Totals before = engine.totals();
    const double rate = engine.Throughput(kThreads, in_flight, absl::GetFlag(FLAGS_seconds), make);
    const Metrics::Totals after = engine.totals();
    const double requests = static_cast<double>(after.rows - before.rows) / 4;
    report.Add(absl::StrCat("4x4096, ", name, ", ", kThreads * in_flight, " in flight"), rate,
               "calls/s");
    report.Add(absl::StrCat("4x4096, ", name, ", ", kThreads * in_flight, " in flight"),
               static_cast<double>(after.executions - before.executions) / requests,
               "batches/call");
  };
  for (const int in_flight : {4, 16, 64}) {
    point("64 weights", kSets, in_flight, CudaWays());
    point("1 weight", 1, in_flight, CudaWays());
  }
  if (!absl::GetFlag(FLAGS_sweep)) return;
  for (const int64_t mib : {0, 1, 4, 16}) {
    CudaWays ways;
    ways.mapped_output_bytes = mib * kMib;
    point(absl::StrCat("64 weights, mapped output to ", mib, " MiB"), kSets, 16, ways);
  }
}

void Main() {
  Report report;
  const std::string parts = absl::GetFlag(FLAGS_parts);
  const auto wanted = [&](const char* part) { return parts.find(part) != std::string::npos; };
  if (wanted("large")) MeasureLarge(report);
  if (wanted("small")) MeasureSmall(report);
  if (wanted("weights")) MeasureWeights(report);
  if (const std::string path = absl::GetFlag(FLAGS_json); !path.empty()) report.Write(path);
}

}  // namespace
}  // namespace norm::server

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  norm::server::Main();
  return 0;
}
