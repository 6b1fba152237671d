#include "server/transport/norm_service.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/async_unary_call.h"
#include "proto/codec/message_reader.h"
#include "proto/codec/message_writer.h"
#include "server/transport/exchange.h"
#include "server/transport/middleware/call_trace.h"
#include "server/transport/status_mapping.h"

namespace norm::server {
namespace {

struct ForwardMethod {
  using Request = norm::v1::NormalizeRequest;
  using Response = norm::v1::NormalizeResponse;
  static constexpr auto kArm = &NormalizationAsyncService::RequestNormalize;
  static constexpr char kName[] = "norm.v1.NormalizationService/Normalize";
};

struct BackwardMethod {
  using Request = norm::v1::NormalizeBackwardRequest;
  using Response = norm::v1::NormalizeBackwardResponse;
  static constexpr auto kArm = &NormalizationAsyncService::RequestNormalizeBackward;
  static constexpr char kName[] = "norm.v1.NormalizationService/NormalizeBackward";
};

/// One unary call: armed, arrived, submitted, finished. Its memory, and with it the request's
/// slices, stays until gRPC has returned every tag and the job, if there is one, has completed:
/// Finish is called only then.
template <typename Method>
class UnaryCall final : public Call {
 public:
  /// Known when the call has come.
  uint64_t flow() {
    if (!flow_.has_value()) flow_ = FlowOf(server_context_);
    return *flow_;
  }

  static void Arm(NormalizationAsyncService& service, grpc::ServerCompletionQueue& queue,
                  QueueInbox& inbox, const ServingContext& context) {
    auto* call = new UnaryCall(service, queue, inbox, context);
    call->server_context_.AsyncNotifyWhenDone(call->done_.Tag());
    (service.*Method::kArm)(&call->server_context_, &call->request_bytes_, &call->responder_,
                            &queue, &queue, call->arrived_.Tag());
  }

 private:
  UnaryCall(NormalizationAsyncService& service, grpc::ServerCompletionQueue& queue,
            QueueInbox& inbox, const ServingContext& context)
      : Call(context.calls), service_(service), queue_(queue), inbox_(inbox), context_(context) {}

  void OnArrived(bool ok) {
    if (!ok) {
      // Shutting down before a call came: gRPC does not return the done tag then.
      done_.Drop();
      return;
    }
    Begin();
    Arm(service_, queue_, inbox_, context_);
    unsent_.SetFlow(flow());
    const absl::Time received = context_.clock.Now();
    trace_.Begin();
    exchange_.emplace(context_, trace_, trace_.NewCallSpan(received), flow(), received);
    if (absl::Status status = Start(); !status.ok()) Fail(status);
  }

  absl::Status Start() {
    absl::Status status = message_.Parse(request_bytes_, &request_);
    request_bytes_.Clear();
    if (!status.ok()) {
      context_.metrics.RecordRejected(RejectReason::kInvalid);
      return status;
    }
    Ref();  // held by the job
    status = exchange_->Submit(request_, message_, ToDeadline(server_context_.deadline()),
                               cancelled_, [this](JobResult result) {
                                 OnJobDone(std::move(result));
                                 Unref();
                               });
    if (!status.ok()) Unref();
    return status;
  }

  /// On a thread of the device, or within Submit.
  void OnJobDone(JobResult result) {
    result_ = std::move(result);
    if (SentAtOnce(result_)) {
      Respond(true);
    } else {
      inbox_.Post(responding_.Event());
    }
  }

  void Respond(bool) {
    message_ = wire::ReceivedMessage();
    JobResult result = std::move(result_);
    exchange_->RecordJob(result.timing);
    if (!result.status.ok()) {
      Fail(result.status);
      return;
    }
    const absl::Time start = context_.clock.Now();
    if (cancelled_->load(std::memory_order_relaxed) || exchange_->expired(start)) {
      Fail(absl::Status(exchange_->RecordLeft(), "nobody waits for the result any more"));
      return;
    }
    typename Method::Response response;
    wire::MessageWriter writer;
    exchange_->Respond(request_, std::move(result), &writer, &response);
    absl::StatusOr<grpc::ByteBuffer> bytes = writer.Build(response);
    if (!bytes.ok()) {
      Fail(absl::InternalError(absl::StrCat("encoding: ", bytes.status().message())));
      return;
    }
    exchange_->RecordEnd(DirectionOf(request_), absl::OkStatus());
    trace_.Answer(absl::OkStatus());
    handed_over_ = context_.clock.Now();
    exchange_->RecordStage(Stage::kEncode, start, handed_over_ - start);
    unsent_.StartWrite(static_cast<int64_t>(bytes->Length()));
    responder_.Finish(*bytes, grpc::Status::OK, finished_.Tag());
  }

  void Fail(const absl::Status& status) {
    exchange_->RecordEnd(DirectionOf(request_), status);
    trace_.Answer(status);
    if (const auto pushback = Pushback(status); pushback.has_value()) {
      server_context_.AddTrailingMetadata(kPushbackTrailer,
                                          absl::StrCat(absl::ToInt64Milliseconds(*pushback)));
    }
    handed_over_ = context_.clock.Now();
    responder_.FinishWithError(ToGrpcStatus(status), finished_.Tag());
  }

  /// The call is over, for whatever reason: also the normal end comes here.
  void OnDone(bool) {
    if (!server_context_.IsCancelled()) return;
    cancelled_->store(true, std::memory_order_relaxed);
    context_.scheduler.ReapQueue();
  }

  void OnFinished(bool ok) {
    unsent_.EndWrite();
    const absl::Time now = context_.clock.Now();
    if (ok) exchange_->RecordStage(Stage::kSend, handed_over_, now - handed_over_);
    trace_.Record(exchange_->TakeSpan(), now, /*sent=*/ok);
  }

  NormalizationAsyncService& service_;
  grpc::ServerCompletionQueue& queue_;
  QueueInbox& inbox_;
  const ServingContext& context_;
  grpc::ServerContext server_context_;
  std::optional<uint64_t> flow_;
  CallTrace trace_{context_, server_context_, Method::kName};
  UnsentResponses::OfCall unsent_{context_.unsent, server_context_};
  grpc::ByteBuffer request_bytes_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> responder_{&server_context_};
  CallEvent<UnaryCall> arrived_{this, &UnaryCall::OnArrived};
  CallEvent<UnaryCall> done_{this, &UnaryCall::OnDone};
  CallEvent<UnaryCall> finished_{this, &UnaryCall::OnFinished};
  CallEvent<UnaryCall> responding_{this, &UnaryCall::Respond};

  wire::ReceivedMessage message_;
  typename Method::Request request_;
  std::optional<Exchange> exchange_;
  JobResult result_;  // between the job's end and the response
  std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  absl::Time handed_over_;
};

}  // namespace

void ArmUnaryCalls(NormalizationAsyncService& service, grpc::ServerCompletionQueue& queue,
                   QueueInbox& inbox, const ServingContext& context) {
  UnaryCall<ForwardMethod>::Arm(service, queue, inbox, context);
  UnaryCall<BackwardMethod>::Arm(service, queue, inbox, context);
}

}  // namespace norm::server
