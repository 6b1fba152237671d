#include "server/transport/echo_service.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/async_unary_call.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "server/transport/call.h"
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

class EchoCall final : public Call {
 public:
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
    if (absl::Status status = Prepare(); !status.ok()) {
      if (const auto pushback = Pushback(status); pushback.has_value()) {
        server_context_.AddTrailingMetadata(kPushbackTrailer,
                                            absl::StrCat(absl::ToInt64Milliseconds(*pushback)));
      }
      responder_.FinishWithError(ToGrpcStatus(status), finished_.Tag());
      return;
    }
    responder_.Finish(message_, grpc::Status::OK, finished_.Tag());
  }

  /// Makes the response of the request, in its place.
  absl::Status Prepare() {
    if (context_.calls.stopping()) return absl::UnavailableError("the server is shutting down");
    const auto& metadata = server_context_.client_metadata();
    const auto found = metadata.find(kSizeMetadata);
    if (found == metadata.end()) return absl::OkStatus();
    const absl::string_view text(found->second.data(), found->second.size());
    uint64_t size = 0;
    if (!absl::SimpleAtoi(text, &size)) {
      return absl::InvalidArgumentError(
          absl::StrCat(kSizeMetadata, ": '", text, "' is no number of bytes"));
    }
    if (size == message_.Length()) return absl::OkStatus();
    absl::StatusOr<grpc::ByteBuffer> resized = Resize(message_, size);
    if (!resized.ok()) return resized.status();
    message_ = *std::move(resized);
    return absl::OkStatus();
  }

  void OnFinished(bool) {}

  EchoAsyncService& service_;
  grpc::ServerCompletionQueue& queue_;
  const ServingContext& context_;
  grpc::ServerContext server_context_;
  grpc::ByteBuffer message_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> responder_{&server_context_};
  CallEvent<EchoCall> arrived_{this, &EchoCall::OnArrived};
  CallEvent<EchoCall> finished_{this, &EchoCall::OnFinished};
};

}  // namespace

void ArmEchoCall(EchoAsyncService& service, grpc::ServerCompletionQueue& queue,
                 const ServingContext& context) {
  EchoCall::Arm(service, queue, context);
}

}  // namespace norm::server
