// norm_engine_bench: what the serving engine reaches without a network, against PCIe in the same run.
// Drives scheduler and executor in process; every kind of request is checked in float64 before it
// is timed.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
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
#include "tests/support/job_builder.h"

ABSL_FLAG(std::string, parts, "large,small,weights", "What to measure.");
ABSL_FLAG(double, seconds, 0.4, "How long to measure each point of a throughput.");
ABSL_FLAG(bool, sweep, false, "Also the settings that the defaults were chosen from.");
ABSL_FLAG(std::string, json, "", "Where to write the results, one object a row.");

namespace norm::server {
namespace {

using Role = TensorRole;
using SteadyClock = std::chrono::steady_clock;

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kHidden = 4096;
constexpr int64_t kLargeRows = 8192;                     // 64 MiB of bf16 each way
constexpr int64_t kReceiveRunBytes = int64_t{64} << 10;  // as gRPC receives them
constexpr int64_t kNever = int64_t{1} << 60;

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "norm_engine_bench: %s\n", why.c_str());
  std::exit(1);
}
template <typename Value>
Value Must(Result<Value> result) {
  if (!result.ok()) Die(result.status().message());
  return std::move(result).value();
}
void Must(const Status& status) {
  if (!status.ok()) Die(status.message());
}

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

uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
double FromBf16(uint16_t value) {
  const uint32_t bits = uint32_t{value} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

/// Inputs of RMSNorm requests, all in pinned memory: `rows` rows of x, and weights.
class Inputs {
 public:
  Inputs(int64_t rows, int weight_sets, uint32_t seed)
      : rows_(rows),
        memory_(Must(cuda::PinnedBuffer::Allocate(
            static_cast<size_t>((rows + weight_sets) * kHidden * 2)))) {
    auto* values = reinterpret_cast<uint16_t*>(memory_.data());
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    const int64_t distinct = std::min<int64_t>(rows, 64) * kHidden;
    for (int64_t i = 0; i < distinct; ++i) values[i] = ToBf16(normal(random));
    for (int64_t i = distinct; i < rows * kHidden; ++i) values[i] = values[i - distinct];
    for (int64_t i = rows * kHidden; i < (rows + weight_sets) * kHidden; ++i) {
      values[i] = ToBf16(1.0F + 0.1F * normal(random));
    }
  }

  const uint16_t* x() const { return reinterpret_cast<const uint16_t*>(memory_.data()); }
  const uint16_t* weight(int set) const { return x() + (rows_ + set) * kHidden; }
  int64_t rows() const { return rows_; }

 private:
  int64_t rows_;
  cuda::PinnedBuffer memory_;
};

enum class Where { kPinned, kReceived };

std::unique_ptr<Job> MakeJob(const Inputs& inputs, int weight_set, Where where) {
  auto job = std::make_unique<Job>();
  job->problem = test::RmsNormProblem(inputs.rows(), kHidden);
  job->problem.dtype = job->problem.weight_dtype = DType::kBF16;
  const auto set = [&](Role role, const uint16_t* values, int64_t count) {
    InputTensor& input = job->inputs[static_cast<size_t>(role)];
    input.size_bytes = 2 * count;
    input.page_locked = where == Where::kPinned;
    const auto* bytes = reinterpret_cast<const std::byte*>(values);
    const int64_t run = input.page_locked ? input.size_bytes : kReceiveRunBytes;
    for (int64_t at = 0; at < input.size_bytes; at += run) {
      input.runs.emplace_back(bytes + at,
                              static_cast<size_t>(std::min(run, input.size_bytes - at)));
    }
  };
  set(Role::kX, inputs.x(), inputs.rows() * kHidden);
  set(Role::kWeight, inputs.weight(weight_set), kHidden);
  return job;
}

/// Every 97th row, the first and the last.
void Check(const Inputs& inputs, int weight_set, const JobResult& result) {
  if (!result.status.ok()) Die(std::string(result.status.message()));
  const auto* y =
      reinterpret_cast<const uint16_t*>(result.outputs[static_cast<size_t>(Role::kY)].data);
  for (int64_t row = 0; row < inputs.rows();
       row = row + 97 < inputs.rows() || row == inputs.rows() - 1 ? row + 97 : inputs.rows() - 1) {
    double squares = 0;
    for (int64_t h = 0; h < kHidden; ++h) {
      const double value = FromBf16(inputs.x()[row * kHidden + h]);
      squares += value * value;
    }
    const double rstd = 1.0 / std::sqrt(squares / kHidden + 1e-6);
    for (int64_t h = 0; h < kHidden; ++h) {
      const double expected =
          FromBf16(inputs.x()[row * kHidden + h]) * rstd * FromBf16(inputs.weight(weight_set)[h]);
      const double actual = FromBf16(y[row * kHidden + h]);
      if (!(std::fabs(actual - expected) <= std::fabs(expected) / 256 + 1e-6)) {
        Die(absl::StrFormat("y[%d, %d] is %g, expected %g", row, h, actual, expected));
      }
    }
  }
}

/// An executor behind a scheduler.
class Engine {
 public:
  explicit Engine(const CudaWays& ways, int copy_helpers = CudaBatchExecutorOptions().copy_helpers)
      : metrics_({"cuda:0"}, BatchCloseReasonNames()) {
    CudaBatchExecutorOptions options;
    options.ways = ways;
    options.copy_helpers = copy_helpers;
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

  /// Median seconds of a job alone.
  template <typename Make>
  double Latency(int calls, const Make& make) {
    std::vector<double> times;
    for (int i = 0; i < calls + calls / 4; ++i) {
      std::unique_ptr<Job> job = make(i);
      std::binary_semaphore done(0);
      double seconds = 0;
      const auto start = SteadyClock::now();
      job->done = [&](const JobResult&) {
        seconds = Seconds(start);  // here the server answers: no other thread is woken for it
        done.release();
      };
      Submit(job);
      done.acquire();
      if (i >= calls / 4) times.push_back(seconds);
    }
    return Median(std::move(times));
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
  const Inputs first(kLargeRows, 1, 1);
  const Inputs second(kLargeRows, 1, 2);
  const double seconds = absl::GetFlag(FLAGS_seconds);
  const auto point = [&](const std::string& name, Where where, const CudaWays& ways, int helpers) {
    Engine engine(ways, helpers);
    // Two inputs in turn: what an earlier request left in a slab is not taken for a result.
    for (const Inputs* inputs : {&first, &second, &first, &second}) {
      Check(*inputs, 0, engine.RunOne(MakeJob(*inputs, 0, where)));
    }
    const auto make = [&](int) { return MakeJob(first, 0, where); };
    engine.Throughput(1, 6, 0.1, make);
    const double rate = engine.Throughput(1, 6, seconds, make);
    const double duplex = DuplexGbps();
    const double gbps = rate * static_cast<double>(kLargeRows * kHidden * 2) / 1e9;
    report.Add(absl::StrCat("64 MiB ", name), gbps, "GB/s a way", gbps / duplex);
    report.Add(absl::StrCat("64 MiB ", name, ", alone"), engine.Latency(16, make) * 1e6, "us");
    return duplex;
  };
  const CudaWays ways;
  const int helpers = CudaBatchExecutorOptions().copy_helpers;
  report.Add("PCIe duplex, 64 MiB", point("pinned", Where::kPinned, ways, helpers), "GB/s a way");
  point("received", Where::kReceived, ways, helpers);
  if (!absl::GetFlag(FLAGS_sweep)) return;
  for (const int more : {0, 2, 8, 12}) {
    point(absl::StrCat("received, ", more, " helpers"), Where::kReceived, ways, more);
  }
  for (const int64_t mib : {2, 4, 16}) {
    CudaWays sliced = ways;
    sliced.slice_bytes = mib * kMib;
    point(absl::StrCat("pinned, slices of ", mib, " MiB"), Where::kPinned, sliced, helpers);
  }
  CudaWays whole = ways;
  whole.sliced_bytes = kNever;
  point("pinned, whole", Where::kPinned, whole, helpers);
}

void MeasureSmall(Report& report) {
  CudaWays mapped;
  mapped.mapped_bytes = kNever;
  CudaWays staged;
  staged.mapped_bytes = 0;
  Engine engines[] = {Engine(mapped), Engine(staged)};
  for (const int64_t rows : {1, 4, 8, 16, 32, 64, 128, 256}) {
    const Inputs inputs(rows, 1, static_cast<uint32_t>(rows));
    const Inputs other(rows, 1, static_cast<uint32_t>(rows + 1000));
    const auto make = [&](int) { return MakeJob(inputs, 0, Where::kReceived); };
    double times[2] = {};
    for (int way = 0; way < 2; ++way) {
      for (const Inputs* checked : {&inputs, &other, &inputs}) {
        Check(*checked, 0, engines[way].RunOne(MakeJob(*checked, 0, Where::kReceived)));
      }
    }
    std::vector<double> medians[2];
    for (int round = 0; round < 5; ++round) {
      for (int way = 0; way < 2; ++way) medians[way].push_back(engines[way].Latency(200, make));
    }
    for (int way = 0; way < 2; ++way) times[way] = Median(medians[way]) * 1e6;
    const std::string shape = absl::StrCat(rows, "x", kHidden, " alone, ");
    report.Add(absl::StrCat(shape, "mapped"), times[0], "us", times[0] / times[1]);
    report.Add(absl::StrCat(shape, "staged"), times[1], "us");
  }
}

void MeasureWeights(Report& report) {
  constexpr int kSets = 64;
  constexpr int kThreads = 4;
  const Inputs inputs(4, kSets, 7);
  const auto point = [&](const std::string& name, int sets, int in_flight, const CudaWays& ways) {
    Engine engine(ways);
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
  for (const int in_flight : {8, 32, 128}) {
    point("64 weights", kSets, in_flight, CudaWays());
    point("1 weight", 1, in_flight, CudaWays());
  }
  if (!absl::GetFlag(FLAGS_sweep)) return;
  for (const int64_t mib : {0, 1, 4, 16}) {
    CudaWays ways;
    ways.mapped_bytes = mib * kMib;
    point(absl::StrCat("64 weights, mapped to ", mib, " MiB"), kSets, 32, ways);
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
