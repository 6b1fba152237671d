#include "server/transport/echo_service.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/async_stream.h"
#include "grpcpp/support/async_unary_call.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "server/transport/call.h"
#include "server/transport/middleware/admission.h"
#include "server/transport/middleware/call_trace.h"
#include "server/transport/status_mapping.h"

namespace norm::server {
namespace {

constexpr char kSizeMetadata[] = "norm-echo-bytes";
/// Responses are headers and timings longer than requests with equal tensors, never more.
constexpr size_t kMaxPaddingBytes = 1024;

/// The first `size` bytes of `message`, zeros where it has no more. The slices stay where they are.
absl::StatusOr<grpc::ByteBuffer> Resize(const grpc::ByteBuffer& message, size_t size) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return absl::InternalError("the message cannot be read");
  std::vector<grpc::Slice> kept;
  size_t missing = size;
  for (const grpc::Slice& slice : slices) {
    if (missing == 0) break;
    const size_t taken = std::min(missing, slice.size());
    kept.push_back(taken == slice.size() ? slice : slice.sub(0, taken));
    missing -= taken;
  }
  if (missing > kMaxPaddingBytes) {
    return absl::InvalidArgumentError(absl::StrCat(kSizeMetadata, ": ", size, " is over the ",
                                                   size - missing, " bytes of the request and ",
                                                   kMaxPaddingBytes));
  }
  if (missing > 0) kept.emplace_back(std::string(missing, '\0'));
  return grpc::ByteBuffer(kept.data(), kept.size());
}

absl::Status ResizeTo(size_t size, grpc::ByteBuffer* message) {
  if (size == message->Length()) return absl::OkStatus();
  absl::StatusOr<grpc::ByteBuffer> resized = Resize(*message, size);
  if (!resized.ok()) return resized.status();
  *message = *std::move(resized);
  return absl::OkStatus();
}

/// What response_bytes at the beginning of `message` asks for; absent where it does not stand there.
std::optional<uint64_t> ResponseBytes(const grpc::ByteBuffer& message) {
  constexpr uint8_t kTag = 0x11;  // field 2, 64 bits
  constexpr size_t kPrefixBytes = 9;
  std::vector<grpc::Slice> slices;
  if (message.Length() < kPrefixBytes || !message.Dump(&slices).ok()) return std::nullopt;
  uint8_t prefix[kPrefixBytes] = {};
  size_t filled = 0;
  for (const grpc::Slice& slice : slices) {
    const size_t here = std::min(kPrefixBytes - filled, slice.size());
    std::copy_n(slice.begin(), here, prefix + filled);
    filled += here;
    if (filled == kPrefixBytes) break;
  }
  if (prefix[0] != kTag) return std::nullopt;
  uint64_t size = 0;
  for (int i = 0; i < 8; ++i) size |= static_cast<uint64_t>(prefix[1 + i]) << (8 * i);
  return size;
}

/// Of all echoes: they tell the floor below requests, and whose they are costs time to find out.
constexpr uint64_t kFlow = 0;

class EchoCall final : public Call {
 public:
  static constexpr uint64_t flow() { return kFlow; }

  static void Arm(EchoAsyncService& service, grpc::ServerCompletionQueue& queue,
                  const ServingContext& context) {
    auto* call = new EchoCall(service, queue, context);
    service.RequestEcho(&call->server_context_, &call->message_, &call->responder_, &queue, &queue,
                        call->arrived_.Tag());
  }

 private:
  EchoCall(EchoAsyncService& service, grpc::ServerCompletionQueue& queue,
           const ServingContext& context)
      : Call(context.calls), service_(service), queue_(queue), context_(context) {}

  void OnArrived(bool ok) {
    if (!ok) return;
    Begin();
    Arm(service_, queue_, context_);
    const uint64_t flow = FlowOf(server_context_);
    unsent_.SetFlow(flow);
    AnswerGivenRequestId(server_context_);
    if (absl::Status status = Prepare(flow); !status.ok()) {
      if (const auto pushback = Pushback(status); pushback.has_value()) {
        server_context_.AddTrailingMetadata(kPushbackTrailer,
                                            absl::StrCat(absl::ToInt64Milliseconds(*pushback)));
      }
      responder_.FinishWithError(ToGrpcStatus(status), finished_.Tag());
      return;
    }
    unsent_.StartWrite(static_cast<int64_t>(message_.Length()));
    responder_.Finish(message_, grpc::Status::OK, finished_.Tag());
  }

  /// Makes the response of the request, in its place.
  absl::Status Prepare(uint64_t flow) {
    if (context_.calls.stopping()) return absl::UnavailableError("the server is shutting down");
    if (absl::Status status = context_.unsent.Check(flow); !status.ok()) return status;
    const auto& metadata = server_context_.client_metadata();
    const auto found = metadata.find(kSizeMetadata);
    if (found == metadata.end()) return absl::OkStatus();
    const absl::string_view text(found->second.data(), found->second.size());
    uint64_t size = 0;
    if (!absl::SimpleAtoi(text, &size)) {
      return absl::InvalidArgumentError(
          absl::StrCat(kSizeMetadata, ": '", text, "' is no number of bytes"));
    }
    return ResizeTo(size, &message_);
  }

  void OnFinished(bool) { unsent_.EndWrite(); }

  EchoAsyncService& service_;
  grpc::ServerCompletionQueue& queue_;
  const ServingContext& context_;
  grpc::ServerContext server_context_;
  UnsentResponses::OfCall unsent_{context_.unsent, server_context_};
  grpc::ByteBuffer message_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> responder_{&server_context_};
  CallEvent<EchoCall> arrived_{this, &EchoCall::OnArrived};
  CallEvent<EchoCall> finished_{this, &EchoCall::OnFinished};
};

/// Reads on while it writes, as NormalizeStream does; at most kMaxUnsent messages wait to be sent,
/// and no more once they have StreamLimits::max_unsent_bytes.
/// Every event of a call comes on the thread of its queue.
class EchoStreamCall final : public Call, private StopListener {
 public:
  static constexpr uint64_t flow() { return kFlow; }

  static void Arm(EchoAsyncService& service, grpc::ServerCompletionQueue& queue,
                  const ServingContext& context) {
    auto* call = new EchoStreamCall(service, queue, context);
    service.RequestEchoStream(&call->server_context_, &call->stream_, &queue, &queue,
                              call->arrived_.Tag());
  }

 private:
  static constexpr size_t kMaxUnsent = 16;

  EchoStreamCall(EchoAsyncService& service, grpc::ServerCompletionQueue& queue,
                 const ServingContext& context)
      : Call(context.calls), service_(service), queue_(queue), context_(context) {}
  ~EchoStreamCall() override {
    if (open_) context_.calls.RemoveListener(this);
  }

  void OnStop() override { server_context_.TryCancel(); }

  void OnArrived(bool ok) {
    if (!ok) return;
    Begin();
    Arm(service_, queue_, context_);
    open_ = true;
    flow_ = FlowOf(server_context_);
    unsent_.SetFlow(flow_);
    AnswerGivenRequestId(server_context_);
    context_.calls.AddListener(this);
    Advance();
  }

  void OnRead(bool ok) {
    reading_ = false;
    if (!ok) {
      ended_ = true;
    } else {
      status_ = context_.unsent.Check(flow_);
      const std::optional<uint64_t> size = ResponseBytes(incoming_);
      if (status_.ok() && size.has_value()) status_ = ResizeTo(*size, &incoming_);
      if (status_.ok()) {
        waiting_bytes_ += Length(incoming_);
        unsent_.Hold(Length(incoming_));
        waiting_.push_back(incoming_);
      } else {
        ended_ = true;
      }
      incoming_.Clear();
    }
    Advance();
  }

  void OnWritten(bool ok) {
    writing_ = false;
    unsent_.EndWrite();
    if (!ok) {
      unsent_.Drop(std::exchange(waiting_bytes_, 0));
      waiting_.clear();
      ended_ = true;
    }
    Advance();
  }

  static int64_t Length(const grpc::ByteBuffer& message) {
    return static_cast<int64_t>(message.Length());
  }

  void OnFinished(bool) {}

  void Advance() {
    if (!writing_ && !waiting_.empty()) {
      writing_ = true;
      waiting_bytes_ -= Length(waiting_.front());
      unsent_.StartHeldWrite(Length(waiting_.front()));
      stream_.Write(waiting_.front(), written_.Tag());
      waiting_.pop_front();
    }
    if (!reading_ && !ended_ && waiting_.size() < kMaxUnsent &&
        waiting_bytes_ < context_.stream.max_unsent_bytes) {
      reading_ = true;
      stream_.Read(&incoming_, read_.Tag());
    }
    if (ended_ && !reading_ && !writing_ && waiting_.empty() && !finishing_) {
      finishing_ = true;
      if (const auto pushback = Pushback(status_); pushback.has_value()) {
        server_context_.AddTrailingMetadata(kPushbackTrailer,
                                            absl::StrCat(absl::ToInt64Milliseconds(*pushback)));
      }
      stream_.Finish(ToGrpcStatus(status_), finished_.Tag());
    }
  }

  EchoAsyncService& service_;
  grpc::ServerCompletionQueue& queue_;
  const ServingContext& context_;
  grpc::ServerContext server_context_;
  UnsentResponses::OfCall unsent_{context_.unsent, server_context_};
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&server_context_};
  CallEvent<EchoStreamCall> arrived_{this, &EchoStreamCall::OnArrived};
  CallEvent<EchoStreamCall> read_{this, &EchoStreamCall::OnRead};
  CallEvent<EchoStreamCall> written_{this, &EchoStreamCall::OnWritten};
  CallEvent<EchoStreamCall> finished_{this, &EchoStreamCall::OnFinished};
  bool open_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool ended_ = false;  // reads no more
  bool finishing_ = false;
  absl::Status status_;
  uint64_t flow_ = 0;
  grpc::ByteBuffer incoming_;
  std::deque<grpc::ByteBuffer> waiting_;  // to be sent
  int64_t waiting_bytes_ = 0;
};

}  // namespace

void ArmEchoStream(EchoAsyncService& service, grpc::ServerCompletionQueue& queue,
                   const ServingContext& context) {
  EchoStreamCall::Arm(service, queue, context);
}

void ArmEchoCall(EchoAsyncService& service, grpc::ServerCompletionQueue& queue,
                 const ServingContext& context) {
  EchoCall::Arm(service, queue, context);
}

}  // namespace norm::server
