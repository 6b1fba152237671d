#include "server/transport/stream_service.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/async_stream.h"
#include "proto/codec/message_reader.h"
#include "proto/codec/message_writer.h"
#include "server/transport/exchange.h"
#include "server/transport/field_error.h"
#include "server/transport/status_mapping.h"

namespace norm::server {
namespace {

/// One request of a stream. Its job's completion holds it, so that the slices the job borrows from
/// live until then.
struct StreamExchange {
  StreamExchange(const ServingContext& context, uint64_t flow, absl::Time received)
      : exchange(context, flow, received) {}

  norm::v1::StreamRequest request;
  wire::ReceivedMessage message;
  Exchange exchange;
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
};

/// One NormalizeStream call.
///
/// At most one Read and one Write are outstanding. Reading pauses while the stream is at its limits
/// (ServingContext::stream), so a client that sends without reading is held by flow control. The
/// call finishes once when reading has ended (half-close, malformed message, cancel, server
/// stopping), nothing is in flight and every response has been written.
class StreamCall final : public Call, private StopListener {
 public:
  static void Arm(NormalizationAsyncService& service, grpc::ServerCompletionQueue& queue,
                  const ServingContext& context) {
    auto* call = new StreamCall(service, queue, context);
    call->server_context_.AsyncNotifyWhenDone(call->done_.Tag());
    service.RequestNormalizeStream(&call->server_context_, &call->stream_, &queue, &queue,
                                   call->arrived_.Tag());
  }

 private:
  struct Outgoing {
    grpc::ByteBuffer bytes;
    int64_t size_bytes = 0;
  };
  enum class Reading { kOpen, kEnded };

  StreamCall(NormalizationAsyncService& service, grpc::ServerCompletionQueue& queue,
             const ServingContext& context)
      : Call(context.calls), service_(service), queue_(queue), context_(context) {}

  ~StreamCall() override {
    if (!open_) return;
    context_.calls.RemoveListener(this);
    context_.metrics.AddStreams(-1);
  }

  void OnArrived(bool ok) {
    if (!ok) {
      done_.Drop();
      return;
    }
    Begin();
    Arm(service_, queue_, context_);
    open_ = true;
    deadline_ = ToDeadline(server_context_.deadline());
    flow_ = FlowOf(server_context_);
    unsent_.SetFlow(flow_);
    context_.metrics.AddStreams(1);
    context_.calls.AddListener(this);
    Advance();
  }

  void OnRead(bool ok) {
    const absl::Time received = context_.clock.Now();
    if (ok) {
      Accept(std::make_shared<StreamExchange>(context_, flow_, received));
    } else {
      const std::lock_guard lock(mutex_);
      reading_ = Reading::kEnded;
    }
    {
      const std::lock_guard lock(mutex_);
      read_outstanding_ = false;
    }
    Advance();
  }

  /// Takes the message that was just read.
  void Accept(const std::shared_ptr<StreamExchange>& one) {
    absl::Status status = one->message.Parse(incoming_, &one->request);
    incoming_.Clear();
    if (!status.ok()) {
      // Without an id nobody can be answered, and what else this client sends cannot be trusted.
      context_.metrics.RecordRejected(RejectReason::kInvalid);
      context_.metrics.RecordMalformed(Direction::kForward);
      End(status);
      return;
    }
    StreamExchange& exchange = *one;
    const uint64_t id = exchange.request.id();
    {
      const std::lock_guard lock(mutex_);
      if (broken_ || finishing_) return;
      if (in_flight_.contains(id)) {
        status = InvalidField("id", absl::StrCat(id, " is still in flight on this stream"));
      } else {
        in_flight_.emplace(id, exchange.cancelled);
      }
    }
    if (!status.ok()) {
      context_.metrics.RecordRejected(RejectReason::kInvalid);
      Enqueue(ErrorResponse(id, status));
      return;
    }
    absl::Time deadline = deadline_;
    if (const uint64_t timeout_us = exchange.request.timeout_us(); timeout_us != 0) {
      constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
      const auto timeout = absl::Microseconds(static_cast<int64_t>(std::min(timeout_us, kMax)));
      deadline = std::min(deadline, exchange.exchange.received() + timeout);
    }
    Ref();
    auto done = [this, one](JobResult result) {
      OnJobDone(*one, std::move(result));
      Unref();
    };
    switch (exchange.request.body_case()) {
      case norm::v1::StreamRequest::kForward:
        status = exchange.exchange.Submit(exchange.request.forward(), exchange.message, deadline,
                                          exchange.cancelled, std::move(done));
        break;
      case norm::v1::StreamRequest::kBackward:
        status = exchange.exchange.Submit(exchange.request.backward(), exchange.message, deadline,
                                          exchange.cancelled, std::move(done));
        break;
      case norm::v1::StreamRequest::BODY_NOT_SET:
        status = InvalidField("body", "is missing: one of forward, backward must be set");
        break;
    }
    if (!status.ok()) {
      Complete(exchange, status, ErrorResponse(id, status));
      Unref();
    }
  }

  void OnJobDone(StreamExchange& one, JobResult result) {
    one.message = wire::ReceivedMessage();
    const uint64_t id = one.request.id();
    if (!result.status.ok()) {
      Complete(one, result.status, ErrorResponse(id, result.status));
      Advance();
      return;
    }
    const absl::Time start = context_.clock.Now();
    norm::v1::StreamResponse response;
    response.set_id(id);
    wire::MessageWriter writer;
    if (one.request.has_forward()) {
      one.exchange.Respond(one.request.forward(), std::move(result), &writer,
                           response.mutable_forward());
    } else {
      one.exchange.Respond(one.request.backward(), std::move(result), &writer,
                           response.mutable_backward());
    }
    absl::StatusOr<grpc::ByteBuffer> bytes = writer.Build(response);
    context_.metrics.RecordStage(Stage::kEncode, context_.clock.Now() - start);
    if (bytes.ok()) {
      Complete(one, absl::OkStatus(), *std::move(bytes));
    } else {
      const absl::Status error =
          absl::InternalError(absl::StrCat("encoding: ", bytes.status().message()));
      Complete(one, error, ErrorResponse(id, error));
    }
    Advance();
  }

  static grpc::ByteBuffer ErrorResponse(uint64_t id, const absl::Status& status) {
    norm::v1::StreamResponse response;
    response.set_id(id);
    *response.mutable_status() = ToProtoStatus(status);
    wire::MessageWriter writer;
    return writer.Build(response).value_or(grpc::ByteBuffer());
  }

  /// Ends one request that was in flight.
  void Complete(StreamExchange& one, const absl::Status& status, grpc::ByteBuffer response) {
    const bool left = status.ok() && one.cancelled->load(std::memory_order_relaxed);
    one.exchange.RecordEnd(one.request.has_backward() ? Direction::kBackward : Direction::kForward,
                           left ? one.exchange.RecordLeft() : status.code());
    const std::lock_guard lock(mutex_);
    in_flight_.erase(one.request.id());
    EnqueueLocked(std::move(response));
  }

  void Enqueue(grpc::ByteBuffer response) {
    const std::lock_guard lock(mutex_);
    EnqueueLocked(std::move(response));
  }

  void EnqueueLocked(grpc::ByteBuffer response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (broken_) return;
    const auto size_bytes = static_cast<int64_t>(response.Length());
    unsent_bytes_ += size_bytes;
    unsent_.Hold(size_bytes);
    outbox_.push_back({std::move(response), size_bytes});
  }

  void OnWritten(bool ok) {
    {
      const std::lock_guard lock(mutex_);
      if (ok) context_.metrics.RecordStage(Stage::kSend, context_.clock.Now() - write_started_);
      writing_ = false;
      unsent_bytes_ -= writing_bytes_;
      unsent_.EndWrite();
      writing_bytes_ = 0;
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

  void OnFinished(bool) {}

  /// No more requests are read; what is in flight is answered, then the call ends with `status`.
  void End(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    reading_ = Reading::kEnded;
    if (final_status_.ok()) final_status_ = status;
  }

  void OnStop() override {
    End(absl::UnavailableError("the server is shutting down"));
    Advance();
  }

  /// The client is gone: nothing can be written, nothing need be computed.
  void Break() {
    {
      const std::lock_guard lock(mutex_);
      broken_ = true;
      reading_ = Reading::kEnded;
      outbox_.clear();
      unsent_.Drop(unsent_bytes_ - writing_bytes_);
      unsent_bytes_ = writing_bytes_;
      for (const auto& [id, cancelled] : in_flight_) {
        cancelled->store(true, std::memory_order_relaxed);
      }
    }
    context_.scheduler.ReapQueue();
  }

  /// Starts every gRPC operation that the state allows. Operations are started outside the mutex: a
  /// write may copy into the socket on this thread, and completions must not wait for that.
  void Advance() {
    bool read = false;
    bool write = false;
    bool finish = false;
    grpc::ByteBuffer outgoing;
    absl::Status status;
    {
      const std::lock_guard lock(mutex_);
      if (finishing_) return;
      if (!writing_ && !outbox_.empty()) {
        write = writing_ = true;
        write_started_ = context_.clock.Now();
        outgoing = std::move(outbox_.front().bytes);
        writing_bytes_ = outbox_.front().size_bytes;
        unsent_.StartHeldWrite(writing_bytes_);
        outbox_.pop_front();
      }
      const int64_t unanswered = static_cast<int64_t>(in_flight_.size() + outbox_.size());
      if (reading_ == Reading::kOpen && !read_outstanding_ &&
          unanswered < context_.stream.max_requests &&
          unsent_bytes_ < context_.stream.max_unsent_bytes) {
        read = read_outstanding_ = true;
      }
      if (reading_ == Reading::kEnded && !writing_ && in_flight_.empty() && outbox_.empty()) {
        finish = finishing_ = true;
        status = broken_ ? absl::CancelledError("the client has gone") : final_status_;
      }
    }
    if (read) stream_.Read(&incoming_, read_.Tag());
    if (write) stream_.Write(outgoing, written_.Tag());
    if (finish) {
      if (const auto pushback = Pushback(status); pushback.has_value()) {
        server_context_.AddTrailingMetadata(kPushbackTrailer,
                                            absl::StrCat(absl::ToInt64Milliseconds(*pushback)));
      }
      stream_.Finish(ToGrpcStatus(status), finished_.Tag());
    }
  }

  NormalizationAsyncService& service_;
  grpc::ServerCompletionQueue& queue_;
  const ServingContext& context_;
  grpc::ServerContext server_context_;
  UnsentResponses::OfCall unsent_{context_.unsent, server_context_};
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&server_context_};
  CallEvent<StreamCall> arrived_{this, &StreamCall::OnArrived};
  CallEvent<StreamCall> done_{this, &StreamCall::OnDone};
  CallEvent<StreamCall> read_{this, &StreamCall::OnRead};
  CallEvent<StreamCall> written_{this, &StreamCall::OnWritten};
  CallEvent<StreamCall> finished_{this, &StreamCall::OnFinished};
  grpc::ByteBuffer incoming_;  // written by gRPC while a Read is outstanding
  absl::Time deadline_;        // set on arrival
  uint64_t flow_ = 0;          // set on arrival
  bool open_ = false;          // set on arrival

  std::mutex mutex_;
  Reading reading_ ABSL_GUARDED_BY(mutex_) = Reading::kOpen;
  bool read_outstanding_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time write_started_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status final_status_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<std::atomic<bool>>> in_flight_
      ABSL_GUARDED_BY(mutex_);
  std::deque<Outgoing> outbox_ ABSL_GUARDED_BY(mutex_);
  int64_t writing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // outbox and the write in progress
};

}  // namespace

void ArmStreamCall(NormalizationAsyncService& service, grpc::ServerCompletionQueue& queue,
                   const ServingContext& context) {
  StreamCall::Arm(service, queue, context);
}

}  // namespace norm::server
