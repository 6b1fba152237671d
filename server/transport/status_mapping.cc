#include "server/transport/status_mapping.h"

#include <string>

#include "google/protobuf/any.pb.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/scheduler/scheduler.h"
#include "server/transport/field_error.h"

namespace norm::server {
namespace {

using google::protobuf::internal::WireFormatLite;

constexpr absl::Duration kDefaultPushback = absl::Milliseconds(100);

/// A length-delimited field. The google.rpc messages are three fields in all; their .proto files
/// are in no Debian package.
void AppendField(int number, const std::string& value, std::string* out) {
  google::protobuf::io::StringOutputStream stream(out);
  google::protobuf::io::CodedOutputStream coded(&stream);
  WireFormatLite::WriteBytes(number, value, &coded);
}

void AddDetail(const char* type, std::string value, norm::v1::Status* status) {
  google::protobuf::Any* any = status->add_details();
  any->set_type_url(std::string("type.googleapis.com/google.rpc.") + type);
  any->set_value(std::move(value));
}

/// BadRequest { repeated FieldViolation field_violations = 1 { string field = 1; string description
/// = 2; } }
std::string BadRequest(const std::string& field, const std::string& description) {
  std::string violation;
  AppendField(1, field, &violation);
  AppendField(2, description, &violation);
  std::string message;
  AppendField(1, violation, &message);
  return message;
}

/// RetryInfo { google.protobuf.Duration retry_delay = 1; }
std::string RetryInfo(absl::Duration delay) {
  google::protobuf::Duration duration;
  const int64_t seconds = absl::IDivDuration(delay, absl::Seconds(1), &delay);
  duration.set_seconds(seconds);
  duration.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(delay)));
  std::string message;
  AppendField(1, duration.SerializeAsString(), &message);
  return message;
}

}  // namespace

std::optional<absl::Duration> Pushback(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kUnavailable) return std::nullopt;
  const absl::Duration given = RetryAfter(status);
  return given > absl::ZeroDuration() ? given : kDefaultPushback;
}

norm::v1::Status ToProtoStatus(const absl::Status& status) {
  norm::v1::Status proto;
  // absl::StatusCode and google.rpc.Code share their numbers.
  proto.set_code(static_cast<int32_t>(status.code()));
  proto.set_message(std::string(status.message()));
  if (const std::string field = ViolatedField(status); !field.empty()) {
    AddDetail("BadRequest", BadRequest(field, proto.message()), &proto);
  }
  if (const auto pushback = Pushback(status); pushback.has_value()) {
    AddDetail("RetryInfo", RetryInfo(*pushback), &proto);
  }
  return proto;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const norm::v1::Status proto = ToProtoStatus(status);
  return grpc::Status(static_cast<grpc::StatusCode>(proto.code()), proto.message(),
                      proto.details_size() > 0 ? proto.SerializeAsString() : std::string());
}

}  // namespace norm::server
