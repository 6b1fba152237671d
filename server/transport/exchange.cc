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

void Exchange::RecordEnd(absl::string_view method, Direction direction,
                         const absl::Status& status) {
  const absl::Time now = context_.clock.Now();
  if (!status.ok()) context_.metrics.RecordError(now, method, status);
  if (!kind_.has_value()) {
    context_.metrics.RecordMalformed(direction);
    return;
  }
  context_.metrics.RecordTransport(TransportKind::kGrpc, bytes_in_, bytes_out_);
  context_.metrics.RecordRequest(kind_->op, direction, kind_->dtype, status.code(),
                                 now - received_);
}

}  // namespace norm::server
