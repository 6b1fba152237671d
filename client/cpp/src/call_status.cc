#include "call_status.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/wrappers.pb.h"
#include "norm/client/client.h"

namespace norm::client {
namespace {

constexpr absl::string_view kUnreachable = "normd.client/unreachable";
constexpr absl::string_view kRetryInfo = "type.googleapis.com/google.rpc.RetryInfo";
constexpr char kPushbackTrailer[] = "grpc-retry-pushback-ms";

/// Whether the call ended without the server saying how.
bool WasCutOff(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::CANCELLED) return true;
  // What gRPC 1.51 makes of an HTTP/2 reset: proxies send one when the server behind them is gone
  // and the response has begun.
  return status.error_code() == grpc::StatusCode::INTERNAL &&
         absl::StartsWith(status.error_message(), "Received RST_STREAM with error code");
}

/// What a connection that could not be made tells of the two ends' settings; gRPC says only what
/// happened on the socket.
std::string Explain(const std::string& message) {
  constexpr absl::string_view kRefused =
      "the server may take nothing but TLS there, or want a client certificate of its authorities";
  constexpr std::pair<absl::string_view, absl::string_view> kMeanings[] = {
      {"wrong version number", "the server does not speak TLS there"},
      {"certificate verify failed",
       "the server's certificate does not lead to the authorities given, or is not valid now"},
      {"is not in peer certificate",
       "the server's certificate is for another name; TlsOptions::server_name (normctl: "
       "--tls-name) "
       "tells which to expect"},
      {"Socket closed", kRefused},
      // Where the refusal crossed what the client had sent already.
      {"Connection reset by peer", kRefused},
      {"Broken pipe", kRefused},
  };
  if (!absl::StrContains(message, "failed to connect to all addresses")) return message;
  for (const auto& [text, meaning] : kMeanings) {
    if (absl::StrContains(message, text)) return absl::StrCat(meaning, " (", message, ")");
  }
  return message;
}

void AddDetails(const norm::v1::Status& details, absl::Status* status) {
  for (const google::protobuf::Any& detail : details.details()) {
    status->SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
}

}  // namespace

absl::Status ToAbslStatus(const grpc::Status& status, const grpc::ClientContext& context,
                          Connection connection) {
  if (status.ok()) return absl::OkStatus();
  const bool cut_off = WasCutOff(status);
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()),
                      Explain(status.error_message()));
  if (cut_off) {
    result = absl::UnavailableError(absl::StrCat("the server or the connection ended the call",
                                                 status.error_message().empty() ? "" : ": ",
                                                 status.error_message()));
  }
  norm::v1::Status details;
  const bool has_details =
      !status.error_details().empty() && details.ParseFromString(status.error_details());
  if (has_details) AddDetails(details, &result);
  // The server marks every UNAVAILABLE of its own with a pushback or details; gRPC's own carry
  // neither.
  const bool answered = has_details || RetryPushback(context).has_value();
  const bool lost = cut_off || status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                    (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
                     connection == Connection::kDown);
  if (lost && !answered) result.SetPayload(kUnreachable, absl::Cord());
  return result;
}

absl::Status ToAbslStatus(const norm::v1::Status& status) {
  if (status.code() == 0) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.code()), status.message());
  AddDetails(status, &result);
  return result;
}

std::optional<absl::Duration> RetryPushback(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find(kPushbackTrailer);
  if (found == trailers.end()) return std::nullopt;
  int64_t milliseconds = 0;
  if (!absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()),
                        &milliseconds)) {
    milliseconds = -1;
  }
  return absl::Milliseconds(milliseconds);
}

std::optional<absl::Duration> RetryPushback(const absl::Status& status) {
  const absl::optional<absl::Cord> info = status.GetPayload(kRetryInfo);
  // RetryInfo { google.protobuf.Duration retry_delay = 1; } has the encoding of the bytes wrapper.
  google::protobuf::BytesValue field;
  google::protobuf::Duration delay;
  if (!info.has_value() || !field.ParseFromString(std::string(*info)) ||
      !delay.ParseFromString(field.value())) {
    return std::nullopt;
  }
  return absl::Seconds(delay.seconds()) + absl::Nanoseconds(delay.nanos());
}

bool IsServerUnreachable(const absl::Status& status) {
  return status.GetPayload(kUnreachable).has_value();
}

}  // namespace norm::client
