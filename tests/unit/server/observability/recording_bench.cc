// What recording one request costs, without a server: the calls that one small unary request and its batch make.
// Prints nanoseconds of processor time a request, the least of many rounds, with recording and without; then what a span adds to the
// thread that serves, and what encoding and writing it takes of the span log's thread.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/observability/metrics.h"
#include "server/observability/span_json.h"
#include "server/observability/span_log.h"

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

/// As the transport makes it of a sampled small call.
std::unique_ptr<SpanRecord> MakeSpan(const tracing::TraceContext& parent) {
  auto span = std::make_unique<SpanRecord>();
  span->context = parent;
  span->context.span_id = tracing::NewId();
  span->parent_id = parent.span_id;
  span->request_id = tracing::SpanIdText(span->context.span_id);
  span->method = "norm.v1.NormalizationService/Normalize";
  span->peer = "ipv4:127.0.0.1:41234";
  span->authority = "127.0.0.1:8470";
  span->start = absl::FromUnixSeconds(1'700'000'000);
  for (int stage = 0; stage < kStageCount; ++stage) {
    span->SetStage(static_cast<Stage>(stage), span->start + absl::Microseconds(10 * stage),
                   absl::Microseconds(10));
  }
  span->end = span->start + absl::Microseconds(70);
  span->op = Op::kRmsNorm;
  span->rows = 4;
  span->hidden_size = 64;
  span->device = "cpu";
  return span;
}

/// Reads the metadata, makes the span and hands it over; the queue is never full.
double NanosecondsOfASpan() {
  Metrics metrics({"cpu"}, {});
  const Logger log({LogLevel::kError, LogFormat::kText});
  const auto spans = SpanLog::Open({"/dev/null", 0, "bench"}, metrics, log);
  if (!spans.ok()) return 0;
  constexpr int kSpans = 2000;
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const double start = ThreadNanoseconds();
    for (int i = 0; i < kSpans; ++i) {
      const auto parent = tracing::ParseTraceContext(
          {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, {});
      (*spans)->Record(MakeSpan(*parent));
    }
    least = std::min(least, (ThreadNanoseconds() - start) / kSpans);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));  // the log's thread catches up
  }
  return least;
}

double NanosecondsOfALine(size_t* bytes) {
  const std::string begin = SpanLineBegin({"bench", "instance", "host", 1});
  const auto span = MakeSpan(tracing::NewTrace());
  std::string lines;
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    constexpr int kLines = 200;
    lines.clear();
    const double start = ThreadNanoseconds();
    for (int i = 0; i < kLines; ++i) AppendSpanLine(begin, *span, &lines);
    least = std::min(least, (ThreadNanoseconds() - start) / kLines);
    *bytes = lines.size() / kLines;
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
  size_t bytes = 0;
  std::printf("a span: %.0f ns of the thread that serves, ", norm::server::NanosecondsOfASpan());
  std::printf("%.0f ns of the span log's", norm::server::NanosecondsOfALine(&bytes));
  std::printf(" for a line of %zu bytes\n", bytes);
  return 0;
}
