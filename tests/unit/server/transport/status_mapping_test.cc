#include "server/transport/status_mapping.h"

#include <gtest/gtest.h>

#include <string>

#include "server/scheduler/scheduler.h"
#include "server/transport/field_error.h"

namespace norm::server {
namespace {

TEST(StatusMappingTest, OkIsOk) { EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok()); }

TEST(StatusMappingTest, FieldTravelsAsBadRequest) {
  const absl::Status status = InvalidField("weight", "length 3 != hidden_size 4");
  const grpc::Status mapped = ToGrpcStatus(status);
  EXPECT_EQ(mapped.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(mapped.error_message(), "weight length 3 != hidden_size 4");
  norm::v1::Status details;
  ASSERT_TRUE(details.ParseFromString(mapped.error_details()));
  EXPECT_EQ(details.code(), 3);
  EXPECT_EQ(details.message(), mapped.error_message());
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.BadRequest");
  // field_violations = 1 { field = 1: "weight", description = 2: the message }, 32 bytes.
  const std::string description = "weight length 3 != hidden_size 4";
  const std::string violation = "\x0a\x06weight\x12\x20" + description;
  EXPECT_EQ(details.details(0).value(),
            std::string("\x0a") + static_cast<char>(violation.size()) + violation);
}

TEST(StatusMappingTest, UnavailableSaysWhenToTryAgain) {
  const absl::Status status =
      WithRetryAfter(absl::UnavailableError("queue full"), absl::Milliseconds(1250));
  EXPECT_EQ(Pushback(status), absl::Milliseconds(1250));
  norm::v1::Status details;
  ASSERT_TRUE(details.ParseFromString(ToGrpcStatus(status).error_details()));
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  // retry_delay = 1 { seconds = 1: 1, nanos = 2: 250000000 }.
  EXPECT_EQ(details.details(0).value(), std::string("\x0a\x07\x08\x01\x10\x80\xe5\x9a\x77"));
  EXPECT_GT(Pushback(absl::UnavailableError("no hint")).value(), absl::ZeroDuration());
  EXPECT_FALSE(Pushback(absl::InternalError("not worth a retry")).has_value());
}

TEST(StatusMappingTest, OtherErrorsCarryCodeAndMessageAlone) {
  const grpc::Status mapped = ToGrpcStatus(absl::ResourceExhaustedError("too large"));
  EXPECT_EQ(mapped.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(mapped.error_details().empty());
}

}  // namespace
}  // namespace norm::server
