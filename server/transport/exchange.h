// One request from its header to its response, whatever kind of call carries it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_reader.h"
#include "server/transport/middleware/admission.h"
#include "server/transport/response_encoder.h"
#include "server/transport/serving_context.h"

namespace norm::server {

constexpr Direction DirectionOf(const norm::v1::NormalizeRequest&) { return Direction::kForward; }
constexpr Direction DirectionOf(const norm::v1::NormalizeBackwardRequest&) {
  return Direction::kBackward;
}

/// Steps of a request, in the order they are called: Submit, then Respond, then RecordEnd. Of one in
/// rows: Open, CountBytes as they pass, Respond, RecordEnd; its owner submits the jobs. Not
/// thread-safe; the owner orders the calls (Submit happens before the job's completion).
class Exchange {
 public:
  /// `flow`: see FlowOf.
  Exchange(const ServingContext& context, uint64_t flow, absl::Time received)
      : context_(context), flow_(flow), received_(received) {}

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
    context_.metrics.RecordStage(Stage::kDecode, decode_);
    return job;
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

  /// Counts the end of the request. `method`: without its service.
  void RecordEnd(absl::string_view method, Direction direction, const absl::Status& status);

  absl::Time received() const { return received_; }

 private:
  absl::Status SubmitJob(std::unique_ptr<Job> job, std::shared_ptr<std::atomic<bool>> cancelled,
                         absl::AnyInvocable<void(JobResult)> done);

  const ServingContext& context_;
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
