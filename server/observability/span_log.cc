#include "server/observability/span_log.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cmath>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/observability/span_json.h"

namespace norm::server {
namespace {

/// About 1 KiB each; 10 of a request in rows with very many launches.
constexpr size_t kMaxQueued = 8192;
/// How late a line may be; and what wakes the thread before that.
constexpr std::chrono::milliseconds kInterval(100);
constexpr size_t kHurry = kMaxQueued / 4;
constexpr absl::Duration kLastWrites = absl::Seconds(2);
/// Of one write.
constexpr size_t kBlockBytes = size_t{256} << 10;

uint64_t Threshold(double sample_ratio) {
  return static_cast<uint64_t>(std::llround((1.0 - sample_ratio) * std::ldexp(1.0, 56)));
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, HOST_NAME_MAX) == 0 ? name : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpanLog>> SpanLog::Open(const SpanLogOptions& options,
                                                       Metrics& metrics, const Logger& log) {
  absl::StatusOr<AppendedFile> file = AppendedFile::Open(options.path);
  if (!file.ok()) return file.status();
  return std::unique_ptr<SpanLog>(new SpanLog(options, *std::move(file), metrics, log));
}

SpanLog::SpanLog(const SpanLogOptions& options, AppendedFile file, Metrics& metrics,
                 const Logger& log)
    : threshold_(Threshold(options.sample_ratio)),
      line_begin_(SpanLineBegin(
          {options.version, tracing::TraceIdText(tracing::NewTrace()), HostName(), getpid()})),
      file_(std::move(file)),
      metrics_(metrics),
      log_(log) {
  queue_.reserve(kMaxQueued);
  thread_ = std::thread([this] { Run(); });
}

SpanLog::~SpanLog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_at_ = absl::Now() + kLastWrites;
  }
  wake_.notify_one();
  thread_.join();
}

bool SpanLog::Samples(const std::optional<tracing::TraceContext>& parent,
                      const tracing::TraceContext& trace) const {
  if (parent.has_value()) return parent->sampled;
  return (trace.trace_id_low & kRandomBits) >= threshold_;
}

void SpanLog::Record(std::unique_ptr<SpanRecord> record) {
  bool hurry = false;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() == kMaxQueued) return metrics_.RecordSpans(0, 1);
    queue_.push_back(std::move(record));
    hurry = queue_.size() == kHurry;
  }
  if (hurry) wake_.notify_one();
}

bool SpanLog::MayWait() const {
  const std::lock_guard lock(mutex_);
  return absl::Now() < stop_at_;
}

void SpanLog::Run() {
  // Of a pipe whose reader has gone; the write says so too.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  Records records;
  records.reserve(kMaxQueued);
  bool stopping = false;
  while (!stopping) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kInterval, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || queue_.size() >= kHurry;
      });
      stopping = stopping_;
      std::swap(records, queue_);
    }
    if (!records.empty()) Write(records);
    records.clear();
  }
}

void SpanLog::Write(const Records& records) {
  for (size_t next = 0; next < records.size();) {
    const size_t first = next;
    lines_.clear();
    while (next < records.size() && lines_.size() < kBlockBytes) {
      AppendSpanLine(line_begin_, *records[next++], &lines_);
    }
    const auto count = static_cast<int64_t>(next - first);
    const absl::Status status = file_.Write(lines_, [this] { return MayWait(); });
    if (status.ok()) {
      metrics_.RecordSpans(count, 0);
      continue;
    }
    metrics_.RecordSpans(0, count);
    if (!MayWait()) {  // the rest is lost too: each block would wait for a poll
      metrics_.RecordSpans(0, static_cast<int64_t>(records.size() - next));
      next = records.size();
    }
    if (const std::optional<int64_t> held_back = limiter_.Admit(absl::Now());
        held_back.has_value()) {
      log_.Error("span log", {{"problem", std::string(status.message())},
                              {"held_back", absl::StrCat(*held_back)}});
    }
  }
}

}  // namespace norm::server
