#include "server/transport/stream_service.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/async_stream.h"
#include "server/transport/middleware/admission.h"
#include "server/transport/middleware/call_trace.h"
#include "server/transport/status_mapping.h"
#include "server/transport/stream_requests.h"

namespace norm::server {
namespace {

/// Of a client that goes in mid-upload gRPC reports the end of its messages first and that of the call
/// behind it, both within microseconds. Requests whose rows are missing wait this long for the second:
/// they are CANCELLED then, and not INVALID_ARGUMENT, as of a client that closes its side too early.
constexpr absl::Duration kGoneWithin = absl::Milliseconds(10);

/// One NormalizeStream call: the operations of gRPC.
///
/// At most one Read and one Write are outstanding. Reading pauses while the stream is at its limits
/// (StreamRequests::MayRead), so a client that sends without reading is held by flow control. The
/// call finishes once when reading has ended (half-close, malformed message, cancel, server
/// stopping), nothing is in flight and every response has been written. A server that stops still
/// reads the rows that open requests wait for.
class StreamCall final : public Call, private StopListener, private ChunkedRequest::Stream {
 public:
  /// Known when the call has come.
  uint64_t flow() {
    if (!flow_.has_value()) flow_ = FlowOf(server_context_);
    return *flow_;
  }

  static void Arm(NormalizationAsyncService& service, grpc::ServerCompletionQueue& queue,
                  QueueInbox& inbox, const ServingContext& context) {
    auto* call = new StreamCall(service, queue, inbox, context);
    call->server_context_.AsyncNotifyWhenDone(call->done_.Tag());
    service.RequestNormalizeStream(&call->server_context_, &call->stream_, &queue, &queue,
                                   call->arrived_.Tag());
  }

 private:
  /// kRowsOnly: until no request waits for rows.
  enum class Reading { kOpen, kRowsOnly, kEnded };

  StreamCall(NormalizationAsyncService& service, grpc::ServerCompletionQueue& queue,
             QueueInbox& inbox, const ServingContext& context)
      : Call(context.calls),
        service_(service),
        queue_(queue),
        inbox_(inbox),
        context_(context),
        requests_(context, trace_, *this, unsent_) {}

  ~StreamCall() override {
    if (!open_) return;
    context_.calls.RemoveListener(this);
    context_.metrics.AddStreams(-1);
  }

  void JobStarts() override { Ref(); }
  void JobEnded(bool here) override {
    if (here) {
      Advance();
    } else {
      inbox_.Post(posted_.Event());
    }
    Unref();
  }
  void OnPosted(bool) { Advance(); }

  void OnArrived(bool ok) {
    if (!ok) {
      done_.Drop();
      return;
    }
    Begin();
    Arm(service_, queue_, inbox_, context_);
    open_ = true;
    trace_.Begin();
    trace_.AnswerStream();
    span_ = trace_.NewCallSpan(context_.clock.Now());
    requests_.Begin(flow(), ToDeadline(server_context_.deadline()));
    context_.metrics.AddStreams(1);
    context_.calls.AddListener(this);
    Advance();
  }

  void OnRead(bool ok) {
    if (ok) {
      auto message = std::make_shared<StreamMessage>();
      message->received = context_.clock.Now();
      Accept(std::move(message));
    } else {
      EndReading(Reading::kEnded, absl::OkStatus());
      if (requests_.AnyAwaitsRows()) {
        uploads_end_alarm_.Set(&queue_, absl::ToChronoTime(absl::Now() + kGoneWithin),
                               uploads_end_.Tag());
      } else {
        requests_.EndUploads();
      }
    }
    {
      const std::lock_guard lock(mutex_);
      read_outstanding_ = false;
    }
    Advance();
  }

  void Accept(std::shared_ptr<StreamMessage> message) {
    const absl::Status status = message->bytes.Parse(incoming_, &message->request);
    incoming_.Clear();
    if (status.ok()) return requests_.Accept(std::move(message));
    // Without an id nobody can be answered, and what else this client sends cannot be trusted.
    context_.metrics.RecordRejected(RejectReason::kInvalid);
    context_.metrics.RecordMalformed(Direction::kForward);
    context_.metrics.RecordError(context_.clock.Now(), trace_.name(), status);
    EndReading(Reading::kEnded, status);
    requests_.EndUploads();
  }

  void OnUploadsEnd(bool) {
    requests_.EndUploads();
    Advance();
  }

  void OnWritten(bool ok) {
    StreamRequests::Outgoing written;
    {
      const std::lock_guard lock(mutex_);
      written = std::move(*writing_);
      const absl::Time now = context_.clock.Now();
      if (ok) {
        context_.metrics.RecordStage(Stage::kSend, now - write_started_);
        if (written.span != nullptr) {
          written.span->SetStage(Stage::kSend, write_started_, now - write_started_);
        }
      }
      trace_.Record(std::move(written.span), now, /*sent=*/ok);
    }
    requests_.OnWritten(written);
    {
      // Only now: the next write must not begin before this one has been counted.
      const std::lock_guard lock(mutex_);
      writing_.reset();
    }
    if (!ok) Break();
    Advance();
  }

  /// The call is over, for whatever reason.
  void OnDone(bool) {
    if (!server_context_.IsCancelled()) return;
    Break();
    Advance();
  }

  /// A client that has all of its responses may have left before the end: what it did not take has
  /// broken the stream already.
  void OnFinished(bool) { trace_.Record(std::move(span_), context_.clock.Now(), /*sent=*/true); }

  /// What is in flight is answered, then the call ends with `status`.
  void EndReading(Reading how, const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    reading_ = std::max(reading_, how);
    if (final_status_.ok()) final_status_ = status;
  }

  void OnStop() override {
    if (CompletionEvent* const event = stopping_.TryEvent(); event != nullptr) inbox_.Post(event);
  }
  void OnStopping(bool) {
    EndReading(Reading::kRowsOnly, absl::UnavailableError("the server is shutting down"));
    Advance();
  }

  void Break() {
    {
      const std::lock_guard lock(mutex_);
      broken_ = true;
      reading_ = Reading::kEnded;
    }
    requests_.Break();
  }

  /// The alarm has gone off, or was set to another time.
  void OnAlarm(bool) {
    const absl::Time now = context_.clock.Now();
    bool reading = false;
    {
      const std::lock_guard lock(mutex_);
      alarm_at_ = absl::InfiniteFuture();
      alarm_set_ = false;
      reading = read_outstanding_;
    }
    requests_.Expire(now, reading);
    Advance();
  }

  /// Starts every gRPC operation that the state allows. Operations are started outside the mutex: a
  /// write may copy into the socket on this thread, and completions must not wait for that.
  void Advance() {
    bool read = false;
    bool finish = false;
    std::optional<grpc::ByteBuffer> outgoing;
    absl::Status status;
    {
      const std::lock_guard lock(mutex_);
      if (finishing_) return;
      if (!writing_.has_value()) {
        writing_ = requests_.TakeOutgoing();
        if (writing_.has_value()) {
          write_started_ = context_.clock.Now();
          outgoing = std::exchange(writing_->bytes, grpc::ByteBuffer());
        }
      }
      if (reading_ == Reading::kRowsOnly && !requests_.AnyUploadOpen()) reading_ = Reading::kEnded;
      if (reading_ != Reading::kEnded && !read_outstanding_ && requests_.MayRead()) {
        read = read_outstanding_ = true;
      }
      if (reading_ == Reading::kEnded && !writing_.has_value() && requests_.Idle()) {
        finish = finishing_ = true;
        status = broken_ ? absl::CancelledError("the client has gone") : final_status_;
      }
      SetAlarm();
    }
    if (read) stream_.Read(&incoming_, read_.Tag());
    if (outgoing.has_value()) stream_.Write(*outgoing, written_.Tag());
    if (finish) {
      if (!status.ok()) trace_.LogFailure(status, std::nullopt);
      if (span_ != nullptr) span_->status = status;
      if (const auto pushback = Pushback(status); pushback.has_value()) {
        server_context_.AddTrailingMetadata(kPushbackTrailer,
                                            absl::StrCat(absl::ToInt64Milliseconds(*pushback)));
      }
      stream_.Finish(ToGrpcStatus(status), finished_.Tag());
    }
  }

  /// Has OnAlarm called no later than the next timeout. An alarm that is set must go off, or be
  /// cancelled, before it can be set anew.
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Time wanted =
        finishing_ ? absl::InfiniteFuture() : requests_.NextTimeout(read_outstanding_);
    if (alarm_set_) {
      if (wanted < alarm_at_ || finishing_) alarm_.Cancel();
      return;
    }
    if (wanted == absl::InfiniteFuture()) return;
    alarm_set_ = true;
    alarm_at_ = wanted;
    alarm_.Set(&queue_, absl::ToChronoTime(wanted), timed_out_.Tag());
  }

  NormalizationAsyncService& service_;
  grpc::ServerCompletionQueue& queue_;
  QueueInbox& inbox_;
  const ServingContext& context_;
  grpc::ServerContext server_context_;
  std::optional<uint64_t> flow_;
  CallTrace trace_{context_, server_context_, "norm.v1.NormalizationService/NormalizeStream"};
  std::unique_ptr<SpanRecord> span_;  // from arrival on, where the call leaves one
  UnsentResponses::OfCall unsent_{context_.unsent, server_context_};
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&server_context_};
  CallEvent<StreamCall> arrived_{this, &StreamCall::OnArrived};
  CallEvent<StreamCall> done_{this, &StreamCall::OnDone};
  CallEvent<StreamCall> read_{this, &StreamCall::OnRead};
  CallEvent<StreamCall> uploads_end_{this, &StreamCall::OnUploadsEnd};
  CallEvent<StreamCall> written_{this, &StreamCall::OnWritten};
  CallEvent<StreamCall> finished_{this, &StreamCall::OnFinished};
  CallEvent<StreamCall> posted_{this, &StreamCall::OnPosted};
  CallEvent<StreamCall> timed_out_{this, &StreamCall::OnAlarm};
  CallEvent<StreamCall> stopping_{this, &StreamCall::OnStopping};
  grpc::ByteBuffer incoming_;  // written by gRPC while a Read is outstanding
  bool open_ = false;          // set on arrival
  grpc::Alarm uploads_end_alarm_;

  std::mutex mutex_;
  Reading reading_ ABSL_GUARDED_BY(mutex_) = Reading::kOpen;
  bool read_outstanding_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<StreamRequests::Outgoing> writing_ ABSL_GUARDED_BY(mutex_);
  absl::Time write_started_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status final_status_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
  bool alarm_set_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time alarm_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();

  StreamRequests requests_;
};

}  // namespace

void ArmStreamCall(NormalizationAsyncService& service, grpc::ServerCompletionQueue& queue,
                   QueueInbox& inbox, const ServingContext& context) {
  StreamCall::Arm(service, queue, inbox, context);
}

}  // namespace norm::server
