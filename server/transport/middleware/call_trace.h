// What responses, log lines and spans say of one call: its request id, its trace, how it ended.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "server/observability/span_record.h"
#include "server/transport/middleware/call_identity.h"
#include "server/transport/serving_context.h"

namespace norm::server {

/// Of a call that neither is sampled nor brings a request id nor fails, nothing is looked at but
/// whether it does.
///
/// Threads:  one at a time. Once Identity() has been asked, const members from any.
class CallTrace {
 public:
  /// `method`: "package.Service/Method". Borrows all.
  CallTrace(const ServingContext& context, grpc::ServerContext& call, const char* method)
      : context_(context), call_(call), method_(method) {}

  /// When the call has come, before anything else.
  void Begin() {
    if (context_.spans != nullptr) Sample();
  }

  const CallIdentity& Identity();
  /// The method without its service.
  absl::string_view name() const;

  /// Adds the request id to what is sent at the end of a unary call: when the client has sent one,
  /// the call is sampled, or has failed. Of those that are refused as UNAVAILABLE without one, in great
  /// numbers, only calls whose line was not held back: an id is of no use that stands nowhere.
  void Answer(const absl::Status& status);
  /// Adds it to what is sent at the beginning of a stream, always.
  void AnswerStream();

  /// The span of the call, or of one of its requests, if the call leaves spans; else null.
  std::unique_ptr<SpanRecord> NewCallSpan(absl::Time start) const;
  std::unique_ptr<SpanRecord> NewRequestSpan(uint64_t stream_request, absl::Time start) const;
  /// Hands a finished span to the log; null is none. `sent`: whether gRPC took the response for its
  /// reader. What was computed for a client that had gone ends as CANCELLED; a failure keeps its status.
  void Record(std::unique_ptr<SpanRecord> span, absl::Time end, bool sent) const;

  /// Writes a line about a call, or a request of a stream, that ended in another status than OK.
  void LogFailure(const absl::Status& status, std::optional<uint64_t> stream_request);

 private:
  void Sample();
  std::unique_ptr<SpanRecord> NewSpan(absl::Time start) const;

  const ServingContext& context_;
  grpc::ServerContext& call_;
  const char* const method_;
  std::optional<CallIdentity> identity_;
  std::atomic<bool> logged_{false};
};

/// Adds the request id that the client has sent, if any, to what is sent at the end of the call.
void AnswerGivenRequestId(grpc::ServerContext& call);

}  // namespace norm::server
