// What recording one request costs, without a server: the calls that one small unary request and its batch make.
// Prints nanoseconds of processor time a request, the least of many rounds, with recording and without.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <thread>
#include <vector>

#include "server/observability/metrics.h"

namespace norm::server {
namespace {

constexpr int kRounds = 50;
constexpr int kRequests = 20000;

void RecordOneRequest(Metrics& metrics) {
  metrics.RecordStage(Stage::kDecode, absl::Nanoseconds(1100));
  metrics.RecordStage(Stage::kQueue, absl::Microseconds(12));
  metrics.SetQueue(1, 8, 4096);
  metrics.SetPinnedPool(0, 4096, 65536);
  metrics.RecordStage(Stage::kCopyIn, absl::Nanoseconds(700));
  metrics.RecordStage(Stage::kKernel, absl::Nanoseconds(300));
  metrics.RecordStage(Stage::kCopyOut, absl::ZeroDuration());
  ExecutionRecord record;
  record.op = Op::kRmsNorm;
  record.direction = Direction::kForward;
  record.dtype = DType::kF32;
  record.close_reason = "slot_free";
  record.requests = 1;
  record.rows = 4;
  record.kernel_bytes = 2304;
  record.input_bytes = 1280;
  record.output_bytes = 1024;
  record.kernel_time = absl::Nanoseconds(300);
  metrics.RecordExecution(record);
  metrics.AddSlotBusy(0, absl::Microseconds(2));
  metrics.RecordTransport(TransportKind::kGrpc, 1280, 1024);
  metrics.RecordRequest(Op::kRmsNorm, Direction::kForward, DType::kF32, absl::StatusCode::kOk,
                        absl::Microseconds(100));
  metrics.RecordStage(Stage::kEncode, absl::Microseconds(3));
  metrics.SetUnsent(1024);
  metrics.RecordStage(Stage::kSend, absl::Microseconds(270));
  metrics.SetUnsent(0);
}

/// Processor time: waiting for another thread's cache line counts, waiting for a processor does not.
double ThreadNanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

double NanosecondsOfARequest(bool recording, int threads) {
  Metrics metrics({.device_names = {"cpu"},
                   .close_reasons = {"single", "slot_free", "rows", "bytes", "segments", "delay"},
                   .recording = recording});
  metrics.SetDeviceCopyBandwidth(0, 3e10);
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> taken(static_cast<size_t>(threads));
    std::vector<std::thread> workers;
    workers.reserve(taken.size());
    for (double& mine : taken) {
      workers.emplace_back([&metrics, &mine] {
        const double start = ThreadNanoseconds();
        for (int i = 0; i < kRequests; ++i) RecordOneRequest(metrics);
        mine = (ThreadNanoseconds() - start) / kRequests;
      });
    }
    for (std::thread& worker : workers) worker.join();
    least = std::min(least, *std::max_element(taken.begin(), taken.end()));
  }
  return least;
}

}  // namespace
}  // namespace norm::server

int main() {
  for (const int threads : {1, 2, 4}) {
    const double on = norm::server::NanosecondsOfARequest(true, threads);
    const double off = norm::server::NanosecondsOfARequest(false, threads);
    std::printf("%d threads: %.0f ns a request, %.0f without recording\n", threads, on, off);
  }
  return 0;
}
