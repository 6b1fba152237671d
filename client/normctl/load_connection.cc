#include "client/normctl/load_connection.h"

#include <mutex>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "norm/client/stream.h"

namespace norm::normctl {
namespace {

template <typename Result>
absl::StatusOr<LoadReply> ToReply(const PreparedCase& prepared, absl::StatusOr<Result> result) {
  if (!result.ok()) return result.status();
  if (absl::Status status = prepared.Check(*result); !status.ok()) return status;
  return LoadReply{.bytes_sent = prepared.tensor_bytes(),
                   .bytes_received = TensorBytes(*result),
                   .message_bytes = result->message_bytes,
                   .timing = std::move(result->timing)};
}

class UnaryConnection final : public LoadConnection {
 public:
  UnaryConnection(client::Client& client, const std::vector<PreparedCase>& cases)
      : client_(client), cases_(cases) {}

  absl::StatusOr<LoadReply> Send(size_t case_index, int64_t ordinal,
                                 absl::Duration timeout) override {
    const PreparedCase& prepared = cases_[case_index];
    const OpRequest& request = prepared.request(ordinal).typed;
    if (const auto* forward = std::get_if<client::ForwardRequest>(&request))
      return ToReply(prepared, client_.Normalize(*forward, timeout));
    return ToReply(prepared,
                   client_.NormalizeBackward(std::get<client::BackwardRequest>(request), timeout));
  }

 private:
  client::Client& client_;
  const std::vector<PreparedCase>& cases_;
};

/// A stream that has ended is opened again for the next request.
class StreamConnection final : public LoadConnection {
 public:
  StreamConnection(client::Client& client, std::unique_ptr<client::NormalizeStream> stream,
                   const std::vector<PreparedCase>& cases)
      : client_(client), cases_(cases), stream_(std::move(stream)) {}

  absl::StatusOr<LoadReply> Send(size_t case_index, int64_t ordinal,
                                 absl::Duration timeout) override {
    const PreparedCase& prepared = cases_[case_index];
    const OpRequest& request = prepared.request(ordinal).typed;
    const std::shared_ptr<client::NormalizeStream> stream = OpenOne();
    if (const auto* forward = std::get_if<client::ForwardRequest>(&request))
      return ToReply(prepared, stream->Normalize(*forward, timeout).get());
    const auto& backward = std::get<client::BackwardRequest>(request);
    return ToReply(prepared, stream->NormalizeBackward(backward, timeout).get());
  }

 private:
  std::shared_ptr<client::NormalizeStream> OpenOne() {
    const std::lock_guard lock(mutex_);
    if (!stream_->status().ok()) stream_ = client_.OpenStream();
    return stream_;
  }

  client::Client& client_;
  const std::vector<PreparedCase>& cases_;
  std::mutex mutex_;
  // Requests that wait for an ended one hold it.
  std::shared_ptr<client::NormalizeStream> stream_ ABSL_GUARDED_BY(mutex_);
};

class RetryingConnection final : public LoadConnection {
 public:
  RetryingConnection(std::unique_ptr<LoadConnection> connection, const client::RetryPolicy& policy)
      : connection_(std::move(connection)), policy_(policy) {}

  absl::StatusOr<LoadReply> Send(size_t case_index, int64_t ordinal,
                                 absl::Duration timeout) override {
    absl::StatusOr<LoadReply> reply = absl::UnknownError("not sent");
    int64_t tries = 0;
    const absl::Status status = client::CallWithRetries(policy_, timeout, [&](absl::Duration left) {
      ++tries;
      reply = connection_->Send(case_index, ordinal, left);
      return reply.status();
    });
    if (!status.ok()) return status;
    reply->tries = tries;
    return reply;
  }

 private:
  const std::unique_ptr<LoadConnection> connection_;
  const client::RetryPolicy policy_;
};

class EchoConnection final : public LoadConnection {
 public:
  /// Calls where `stream` is null.
  EchoConnection(client::Client& client, std::unique_ptr<client::EchoStream> stream,
                 const std::vector<PreparedCase>& cases, EchoSize size,
                 const std::vector<int64_t>& response_bytes)
      : client_(client),
        stream_(std::move(stream)),
        cases_(cases),
        size_(size),
        response_bytes_(response_bytes) {}

  absl::StatusOr<LoadReply> Send(size_t case_index, int64_t ordinal,
                                 absl::Duration timeout) override {
    const bool same = size_ == EchoSize::kSame;
    const client::EncodedRequest& request =
        same ? cases_[case_index].request(ordinal).encoded : empty_;
    const int64_t response_bytes = same ? response_bytes_[case_index] : 0;
    const absl::Status status = stream_ != nullptr ? stream_->Echo(request, response_bytes, timeout)
                                                   : client_.Echo(request, response_bytes, timeout);
    if (!status.ok()) return status;
    return LoadReply{.bytes_sent = request.size_bytes(),
                     .bytes_received = response_bytes,
                     .message_bytes = response_bytes};
  }

 private:
  client::Client& client_;
  const std::unique_ptr<client::EchoStream> stream_;
  const std::vector<PreparedCase>& cases_;
  const EchoSize size_;
  const std::vector<int64_t>& response_bytes_;
  const client::EncodedRequest empty_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LoadConnection>> OpenConnection(
    client::Client& client, const std::vector<PreparedCase>& cases, LoadTransport transport) {
  if (transport == LoadTransport::kUnary) return std::make_unique<UnaryConnection>(client, cases);
  std::unique_ptr<client::NormalizeStream> stream = client.OpenStream();
  if (absl::Status status = stream->status(); !status.ok()) return status;
  return std::make_unique<StreamConnection>(client, std::move(stream), cases);
}

std::unique_ptr<LoadConnection> WithRetries(std::unique_ptr<LoadConnection> connection,
                                            const client::RetryPolicy& policy) {
  return std::make_unique<RetryingConnection>(std::move(connection), policy);
}

std::unique_ptr<LoadConnection> OpenEcho(client::Client& client,
                                         const std::vector<PreparedCase>& cases,
                                         LoadTransport transport, EchoSize size,
                                         const std::vector<int64_t>& response_bytes) {
  return std::make_unique<EchoConnection>(
      client, transport == LoadTransport::kStream ? client.OpenEchoStream() : nullptr, cases, size,
      response_bytes);
}

}  // namespace norm::normctl
