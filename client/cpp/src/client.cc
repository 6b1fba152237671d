#include "norm/client/client.h"

#include <algorithm>
#include <functional>
#include <future>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "address.h"
#include "answer_threads.h"
#include "call_metadata.h"
#include "call_status.h"
#include "channel_pool.h"
#include "echo_stream.h"
#include "encoded_request.h"
#include "google/protobuf/wrappers.pb.h"
#include "request_encoder.h"
#include "result_decoder.h"
#include "retry.h"
#include "row_transfer.h"
#include "server_info_decoder.h"
#include "stream_impl.h"
#include "timeout.h"
#include "unary_call.h"

namespace norm::client {
namespace {

absl::Status Validate(const std::string& address, const ClientOptions& options) {
  if (absl::Status status = CheckAddress(address); !status.ok()) return status;
  if (options.connections < 1) {
    return absl::InvalidArgumentError(absl::StrCat("connections ", options.connections, " < 1"));
  }
  if (options.max_receive_bytes < 1 || options.max_receive_bytes > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("max_receive_bytes ", options.max_receive_bytes,
                                                   " is outside [1, 2147483647]"));
  }
  const ChunkOptions& chunks = options.chunks;
  if (chunks.above_bytes < 0 || chunks.chunk_bytes < 1 || chunks.window_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunks: above_bytes ", chunks.above_bytes, " < 0, chunk_bytes ",
                     chunks.chunk_bytes, " < 1 or window_bytes ", chunks.window_bytes, " < 1"));
  }
  if (options.keepalive_interval.has_value() && (*options.keepalive_interval < absl::Seconds(1) ||
                                                 *options.keepalive_interval > absl::Hours(24))) {
    return absl::InvalidArgumentError(
        absl::StrCat("keepalive_interval ", absl::FormatDuration(*options.keepalive_interval),
                     " is outside [1s, 24h]"));
  }
  return Validate(options.retry);
}

}  // namespace

class Client::Impl {
 public:
  Impl(std::unique_ptr<ChannelPool> channels, const ClientOptions& options)
      : retry_(options.retry),
        chunks_(options.chunks),
        identify_(options.identify),
        channels_(std::move(channels)) {}

  /// Of a call or stream that begins.
  CallMetadata NewMetadata() const { return identify_ ? ToMetadata(identify_()) : CallMetadata(); }

  /// All tries of one call.
  absl::StatusOr<grpc::ByteBuffer> Call(UnaryCall call) {
    call.metadata.merge(NewMetadata());
    grpc::ByteBuffer reply;
    SystemRetryClock clock;
    absl::Status status = RunWithRetries(retry_, call.deadline, clock, [&] {
      reply.Clear();
      return TryOnce(channels_->Next(), *answer_threads_, call, &reply);
    });
    if (!status.ok()) return status;
    return reply;
  }

  /// A call that carries tensors.
  template <typename Result, typename Request, typename Response, typename TypedRequest>
  absl::StatusOr<Result> CallWithTensors(const std::string& method, const TypedRequest& typed,
                                         absl::Duration timeout, const CallOptions& options) {
    absl::StatusOr<absl::Time> deadline = DeadlineAfter(timeout);
    if (!deadline.ok()) return deadline.status();
    wire::MessageWriter writer;
    norm::v1::StreamRequest large;
    Request& message = *Body<Request>(&large);
    if (absl::Status status = Encode(typed, &writer, &message); !status.ok()) return status;
    if (BytesInRows(large) > chunks_.above_bytes) {
      return CallInRows<Result>(large, writer, *deadline, options);
    }
    absl::StatusOr<grpc::ByteBuffer> buffer = writer.Build(message);
    if (!buffer.ok()) return buffer.status();
    absl::StatusOr<grpc::ByteBuffer> reply =
        Call(UnaryCall{method, *buffer, *deadline, options.progress});
    if (!reply.ok()) return reply.status();
    auto received = std::make_shared<wire::ReceivedMessage>();
    Response response;
    if (absl::Status status = received->Parse(*reply, &response); !status.ok()) {
      return absl::InternalError(
          absl::StrCat("the server's reply cannot be read: ", status.message()));
    }
    absl::StatusOr<Result> result = Decode(received, response);
    if (result.ok()) result->message_bytes = static_cast<int64_t>(reply->Length());
    return result;
  }

  /// A call of a control service.
  absl::Status CallPlain(const std::string& method, const google::protobuf::Message& request,
                         absl::Duration timeout, google::protobuf::Message* response) {
    absl::StatusOr<absl::Time> deadline = DeadlineAfter(timeout);
    if (!deadline.ok()) return deadline.status();
    absl::StatusOr<grpc::ByteBuffer> buffer = ToByteBuffer(request);
    if (!buffer.ok()) return buffer.status();
    absl::StatusOr<grpc::ByteBuffer> reply = Call(UnaryCall{method, *buffer, *deadline, nullptr});
    if (!reply.ok()) return reply.status();
    return FromByteBuffer(&*reply, response);
  }

  std::shared_ptr<grpc::Channel> NextChannel() { return channels_->Next(); }

 private:
  template <typename Request>
  static Request* Body(norm::v1::StreamRequest* message) {
    if constexpr (std::is_same_v<Request, norm::v1::NormalizeRequest>) {
      return message->mutable_forward();
    } else {
      return message->mutable_backward();
    }
  }

  /// All tries of a request that is too large for one message, each on a stream of its own.
  template <typename Result>
  absl::StatusOr<Result> CallInRows(const norm::v1::StreamRequest& message,
                                    const wire::MessageWriter& writer, absl::Time deadline,
                                    const CallOptions& options) {
    absl::StatusOr<Result> result = absl::UnknownError("not called");
    SystemRetryClock clock;
    const CallMetadata metadata = NewMetadata();
    RunWithRetries(retry_, deadline, clock, [&] {
      NormalizeStream::Impl stream(channels_->Next(), StreamOptions{.chunks = chunks_}, metadata);
      std::promise<absl::StatusOr<Result>> promise;
      std::function<void(absl::StatusOr<Result>)> done = [&promise](absl::StatusOr<Result> value) {
        promise.set_value(std::move(value));
      };
      const absl::Duration left = std::max(deadline - absl::Now(), absl::Microseconds(1));
      stream.SubmitEncoded(message, writer, left, std::move(done), options);
      result = promise.get_future().get();
      return AttemptOutcome{result.status(), RetryPushback(result.status())};
    }).IgnoreError();
    return result;
  }

  const RetryPolicy retry_;
  const ChunkOptions chunks_;
  const std::function<CallIdentity()> identify_;
  const std::unique_ptr<ChannelPool> channels_;
  const std::shared_ptr<AnswerThreads> answer_threads_ = AnswerThreads::OfProcess();
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const std::string& address,
                                                       const ClientOptions& options) {
  if (absl::Status status = Validate(address, options); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<ChannelPool>> channels =
      ChannelPool::Create(SplitTargets(address), options);
  if (!channels.ok()) return channels.status();
  return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(*std::move(channels), options)));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<ForwardResult> Client::RmsNorm(const RmsNormRequest& request,
                                              absl::Duration timeout) {
  return Normalize(request, timeout);
}

absl::StatusOr<ForwardResult> Client::LayerNorm(const LayerNormRequest& request,
                                                absl::Duration timeout) {
  return Normalize(request, timeout);
}

absl::StatusOr<ForwardResult> Client::BatchNorm(const BatchNormRequest& request,
                                                absl::Duration timeout) {
  return Normalize(request, timeout);
}

absl::StatusOr<BackwardResult> Client::RmsNormBackward(const RmsNormBackwardRequest& request,
                                                       absl::Duration timeout) {
  return NormalizeBackward(request, timeout);
}

absl::StatusOr<BackwardResult> Client::LayerNormBackward(const LayerNormBackwardRequest& request,
                                                         absl::Duration timeout) {
  return NormalizeBackward(request, timeout);
}

absl::StatusOr<BackwardResult> Client::BatchNormBackward(const BatchNormBackwardRequest& request,
                                                         absl::Duration timeout) {
  return NormalizeBackward(request, timeout);
}

absl::StatusOr<ForwardResult> Client::Normalize(const ForwardRequest& request,
                                                absl::Duration timeout,
                                                const CallOptions& options) {
  return impl_
      ->CallWithTensors<ForwardResult, norm::v1::NormalizeRequest, norm::v1::NormalizeResponse>(
          "/norm.v1.NormalizationService/Normalize", request, timeout, options);
}

absl::StatusOr<BackwardResult> Client::NormalizeBackward(const BackwardRequest& request,
                                                         absl::Duration timeout,
                                                         const CallOptions& options) {
  return impl_->CallWithTensors<BackwardResult, norm::v1::NormalizeBackwardRequest,
                                norm::v1::NormalizeBackwardResponse>(
      "/norm.v1.NormalizationService/NormalizeBackward", request, timeout, options);
}

std::unique_ptr<NormalizeStream> Client::OpenStream(const StreamOptions& options) {
  return std::unique_ptr<NormalizeStream>(
      new NormalizeStream(std::make_unique<NormalizeStream::Impl>(impl_->NextChannel(), options,
                                                                  impl_->NewMetadata())));
}

absl::StatusOr<ServerInfo> Client::GetServerInfo(absl::Duration timeout) {
  norm::v1::ServerInfo response;
  absl::Status status = impl_->CallPlain("/norm.v1.ServerService/GetServerInfo",
                                         norm::v1::GetServerInfoRequest(), timeout, &response);
  if (!status.ok()) return status;
  return Decode(response);
}

absl::StatusOr<ServerStatistics> Client::GetStatistics(absl::Duration timeout) {
  norm::v1::ServerStatistics response;
  absl::Status status = impl_->CallPlain("/norm.v1.ServerService/GetStatistics",
                                         norm::v1::GetStatisticsRequest(), timeout, &response);
  if (!status.ok()) return status;
  return Decode(response);
}

absl::Status Client::Echo(const EncodedRequest& request, int64_t response_bytes,
                          absl::Duration timeout) {
  absl::StatusOr<absl::Time> deadline = DeadlineAfter(timeout);
  if (!deadline.ok()) return deadline.status();
  absl::StatusOr<grpc::ByteBuffer> reply =
      impl_->Call(UnaryCall{.method = "/norm.v1.EchoService/Echo",
                            .request = request.message_->bytes,
                            .deadline = *deadline,
                            .metadata = {{"norm-echo-bytes", absl::StrCat(response_bytes)}}});
  if (!reply.ok()) return reply.status();
  if (static_cast<int64_t>(reply->Length()) == response_bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the echo has ", reply->Length(), " bytes, not the ",
                                          response_bytes, " asked for"));
}

std::unique_ptr<EchoStream> Client::OpenEchoStream() {
  return std::unique_ptr<EchoStream>(
      new EchoStream(std::make_unique<EchoStream::Impl>(impl_->NextChannel())));
}

absl::StatusOr<Health> Client::CheckHealth(const std::string& service, absl::Duration timeout) {
  // grpc.health.v1's request is { string service = 1 } and its response { enum status = 1 }: the
  // wrappers of protobuf have the same encoding. A program that uses this library may have code
  // generated for the health messages, and protobuf ends a process that has it twice.
  google::protobuf::StringValue request;
  request.set_value(service);
  google::protobuf::Int32Value response;
  absl::Status status =
      impl_->CallPlain("/grpc.health.v1.Health/Check", request, timeout, &response);
  if (!status.ok()) return status;
  switch (response.value()) {
    case 1:
      return Health::kServing;
    case 2:
      return Health::kNotServing;
    case 3:
      return Health::kServiceUnknown;
    default:
      return Health::kUnknown;
  }
}

}  // namespace norm::client
