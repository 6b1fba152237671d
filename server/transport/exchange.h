// One request from its header to its response, whatever kind of call carries it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_reader.h"
#include "server/transport/middleware/admission.h"
#include "server/transport/middleware/call_trace.h"
#include "server/transport/response_encoder.h"
#include "server/transport/serving_context.h"

namespace norm::server {

constexpr Direction DirectionOf(const norm::v1::NormalizeRequest&) { return Direction::kForward; }
constexpr Direction DirectionOf(const norm::v1::NormalizeBackwardRequest&) {
  return Direction::kBackward;
}

/// Steps of a request, in the order they are called: Submit, then RecordJob, Respond, RecordEnd,
/// TakeSpan. Of one in rows: Open, CountBytes and RecordLaunch as they pass, Respond, RecordEnd,
/// TakeSpan; its owner submits the jobs. Not thread-safe; the owner orders the calls (Submit happens
/// before the job's completion).
class Exchange {
 public:
  /// `flow`: see FlowOf. Borrows context and trace. `span`: of the request, null when it leaves none.
  Exchange(const ServingContext& context, CallTrace& trace, std::unique_ptr<SpanRecord> span,
           uint64_t flow, absl::Time received)
      : context_(context),
        trace_(trace),
        span_(std::move(span)),
        flow_(flow),
        received_(received) {}

  /// Admits, decodes and hands the job to the scheduler, which calls `done` exactly once if this
  /// returns OK. `request` and `message` must live until then.
  template <typename Request>
  absl::Status Submit(const Request& request, const wire::ReceivedMessage& message,
                      absl::Time deadline, std::shared_ptr<std::atomic<bool>> cancelled,
                      absl::AnyInvocable<void(JobResult)> done) {
    auto job = Open(request, message, deadline, Transfer::kWhole);
    if (!job.ok()) return job.status();
    return SubmitJob(*std::move(job), std::move(cancelled), std::move(done));
  }

  /// Admits and decodes: the job as DecodeRequest makes it.
  template <typename Request>
  absl::StatusOr<std::unique_ptr<Job>> Open(const Request& request,
                                            const wire::ReceivedMessage& message,
                                            absl::Time deadline, Transfer transfer) {
    deadline_ = deadline;
    transfer_ = transfer;
    if (absl::Status status = Admit(context_, flow_, deadline, received_); !status.ok()) {
      kind_ = KindOf(request);
      return status;
    }
    auto job = DecodeRequest(request, message, context_.decode, transfer);
    if (!job.ok()) {
      kind_ = KindOf(request);
      context_.metrics.RecordRejected(job.status().code() == absl::StatusCode::kResourceExhausted
                                          ? RejectReason::kTooLarge
                                          : RejectReason::kInvalid);
      return job;
    }
    problem_ = (*job)->problem;
    kind_ = RequestKind{problem_.op, problem_.dtype};
    for (const InputTensor& input : (*job)->inputs) bytes_in_ += input.size_bytes;
    decode_ = context_.clock.Now() - received_;
    RecordStage(Stage::kDecode, received_, decode_);
    return job;
  }

  /// A stage of the request itself; those of its launch come with RecordJob.
  void RecordStage(Stage stage, absl::Time start, absl::Duration time) {
    context_.metrics.RecordStage(stage, time);
    if (span_ != nullptr) span_->SetStage(stage, start, time);
  }

  /// For the span: where the time of the request's job went, which the metrics know already; and of
  /// one launch of a request in rows.
  void RecordJob(const JobTiming& timing) {
    if (span_ != nullptr) FillJob(timing);
  }
  void RecordLaunch(const JobTiming& timing, int64_t first_row, int64_t rows) {
    if (span_ != nullptr) AddLaunch(timing, first_row, rows);
  }

  /// Tensor bytes that came or went in rows.
  void CountBytes(int64_t in, int64_t out) {
    bytes_in_ += in;
    bytes_out_ += out;
  }

  /// Fills `response` from an OK result.
  template <typename Request, typename Response>
  void Respond(const Request& request, JobResult result, wire::MessageWriter* writer,
               Response* response) {
    result.timing.decode = decode_;
    const absl::Duration total = context_.clock.Now() - received_;
    FillResponse(request, problem_, result, total, writer, response, transfer_);
    bytes_out_ += OutputBytes(result);
  }

  /// Whether the request's time was up at `now`.
  bool expired(absl::Time now) const { return deadline_ <= now; }

  /// Counts a finished result that nobody waits for any more; the code such a request ends with:
  /// DEADLINE_EXCEEDED or CANCELLED.
  absl::StatusCode RecordLeft();

  /// Counts the end of the request, and logs that of one that failed. `stream_request`: its id,
  /// where it is one of a stream.
  void RecordEnd(Direction direction, const absl::Status& status,
                 std::optional<uint64_t> stream_request = std::nullopt);

  /// What CallTrace::Record is to have once the response has been sent, or is known not to be.
  std::unique_ptr<SpanRecord> TakeSpan() { return std::move(span_); }

  absl::Time received() const { return received_; }

 private:
  absl::Status SubmitJob(std::unique_ptr<Job> job, std::shared_ptr<std::atomic<bool>> cancelled,
                         absl::AnyInvocable<void(JobResult)> done);
  void FillJob(const JobTiming& timing);
  void AddLaunch(const JobTiming& timing, int64_t first_row, int64_t rows);

  const ServingContext& context_;
  CallTrace& trace_;
  std::unique_ptr<SpanRecord> span_;
  uint64_t flow_;
  absl::Time received_;
  absl::Time deadline_ = absl::InfiniteFuture();
  Transfer transfer_ = Transfer::kWhole;
  NormProblem problem_;
  std::optional<RequestKind> kind_;
  absl::Duration decode_;
  int64_t bytes_in_ = 0;
  int64_t bytes_out_ = 0;
};

}  // namespace norm::server
