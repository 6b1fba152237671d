#include "server/transport/exchange.h"

#include <utility>

namespace norm::server {

absl::Status Exchange::SubmitJob(std::unique_ptr<Job> job,
                                 std::shared_ptr<std::atomic<bool>> cancelled,
                                 absl::AnyInvocable<void(JobResult)> done) {
  job->flow = flow_;
  job->deadline = deadline_;
  job->received = received_;
  job->cancelled = std::move(cancelled);
  job->done = std::move(done);
  return context_.scheduler.Submit(job);
}

absl::StatusCode Exchange::RecordLeft() {
  if (deadline_ <= context_.clock.Now()) {
    context_.metrics.RecordDeadlineExceeded(Stage::kSend);
    return absl::StatusCode::kDeadlineExceeded;
  }
  context_.metrics.RecordCancelled(Stage::kSend);
  return absl::StatusCode::kCancelled;
}

void Exchange::FillJob(const JobTiming& timing) {
  absl::Time at = received_ + decode_;
  const std::pair<Stage, absl::Duration> stages[] = {{Stage::kQueue, timing.queue},
                                                     {Stage::kCopyIn, timing.copy_in},
                                                     {Stage::kKernel, timing.kernel},
                                                     {Stage::kCopyOut, timing.copy_out}};
  for (const auto& [stage, time] : stages) {
    // A stage that the device does not have, or that was not reached.
    if (time == absl::ZeroDuration() && stage != Stage::kQueue) continue;
    span_->SetStage(stage, at, time);
    at += time;
  }
  span_->device = timing.device;
  span_->batch_requests = timing.batch_requests;
  span_->batch_rows = timing.batch_rows;
  span_->batch_segments = timing.batch_segments;
}

void Exchange::AddLaunch(const JobTiming& timing, int64_t first_row, int64_t rows) {
  span_->device = timing.device;
  if (span_->launches.size() == SpanRecord::kMaxLaunches) {
    ++span_->dropped_launches;
    return;
  }
  span_->launches.push_back({context_.clock.Now(), first_row, rows, timing.queue, timing.copy_in,
                             timing.kernel, timing.copy_out});
}

void Exchange::RecordEnd(Direction direction, const absl::Status& status,
                         std::optional<uint64_t> stream_request) {
  const absl::Time now = context_.clock.Now();
  if (!status.ok()) {
    context_.metrics.RecordError(now, trace_.name(), status);
    trace_.LogFailure(status, stream_request);
  }
  if (span_ != nullptr) {
    span_->status = status;
    span_->direction = direction;
    if (kind_.has_value()) {
      span_->op = kind_->op;
      span_->dtype = kind_->dtype;
    }
    span_->rows = problem_.rows;
    span_->hidden_size = problem_.hidden_size;
    span_->bytes_in = bytes_in_;
    span_->bytes_out = bytes_out_;
  }
  if (!kind_.has_value()) {
    context_.metrics.RecordMalformed(direction);
    return;
  }
  context_.metrics.RecordTransport(TransportKind::kGrpc, bytes_in_, bytes_out_);
  context_.metrics.RecordRequest(kind_->op, direction, kind_->dtype, status.code(),
                                 now - received_);
}

}  // namespace norm::server
