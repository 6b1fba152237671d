#include "server/transport/field_error.h"

#include "absl/strings/cord.h"

namespace norm::server {
namespace {

constexpr absl::string_view kFieldPayload = "norm.field";

}  // namespace

absl::Status InvalidField(absl::string_view field, absl::string_view rule) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, " ", rule));
  status.SetPayload(kFieldPayload, absl::Cord(field));
  return status;
}

std::string ViolatedField(const absl::Status& status) {
  const auto payload = status.GetPayload(kFieldPayload);
  return payload.has_value() ? std::string(*payload) : std::string();
}

}  // namespace norm::server
