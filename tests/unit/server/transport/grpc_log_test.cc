#include "server/transport/grpc_log.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpc/health/v1/health.pb.h"
#include "server/observability/log_limiter.h"

namespace norm::server {
namespace {

TEST(GrpcLogTest, ExplainsHandshakesAndKeepsWhatItDoesNotKnow) {
  // As gRPC 1.51 over OpenSSL 3.0 writes them.
  EXPECT_EQ(ExplainHandshake("Handshake failed with fatal error SSL_ERROR_SSL: error:0A00010B:SSL "
                             "routines::wrong version number."),
            "the client does not speak TLS");
  EXPECT_EQ(ExplainHandshake("Handshake failed with fatal error SSL_ERROR_SSL: error:0A0000C7:SSL "
                             "routines::peer did not return a certificate."),
            "the client shows no certificate, which --tls_client_ca requires");
  const std::string unknown =
      "Handshake failed with fatal error SSL_ERROR_SSL: error:1: something.";
  EXPECT_EQ(ExplainHandshake(unknown), unknown);
  EXPECT_EQ(ExplainHandshake("No port specified for wrong version number"), "");
}

TEST(GrpcLogTest, WhatProtobufSaysIsALineOfTheLogOnceASecond) {
  testing::internal::CaptureStderr();
  const absl::Time start = absl::Now();
  {
    const Logger logger({LogLevel::kInfo, LogFormat::kJson});
    const GrpcLogLines lines(logger);
    grpc::health::v1::HealthCheckRequest request;
    for (int i = 0; i < 100; ++i) (void)request.ParseFromString("\x0a\x02\xff\xfe");
  }
  const std::string text = testing::internal::GetCapturedStderr();
  int64_t count = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const nlohmann::json parsed = nlohmann::json::parse(line);
    EXPECT_EQ(parsed["message"], "protobuf");
    EXPECT_THAT(parsed["text"].get<std::string>(), testing::HasSubstr("invalid UTF-8"));
    ++count;
  }
  EXPECT_GE(count, 1);
  EXPECT_LE(count, 2 + absl::ToInt64Seconds(absl::Now() - start));
}

TEST(LogLimiterTest, LetsOneThroughInEachIntervalAndCountsTheRest) {
  LogLimiter limiter(absl::Seconds(1));
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(limiter.Admit(start), 0);
  EXPECT_EQ(limiter.Admit(start), std::nullopt);
  EXPECT_EQ(limiter.Admit(start + absl::Milliseconds(999)), std::nullopt);
  EXPECT_EQ(limiter.Admit(start + absl::Seconds(1)), 2);
  EXPECT_EQ(limiter.Admit(start + absl::Seconds(5)), 0);
  EXPECT_EQ(limiter.Admit(start + absl::Seconds(5)), std::nullopt);
}

TEST(LogLimiterTest, AClockThatIsSetBackHoldsNothingBackForLong) {
  LogLimiter limiter(absl::Seconds(1));
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(limiter.Admit(start + absl::Hours(1)), 0);
  EXPECT_EQ(limiter.Admit(start), 0);
  EXPECT_EQ(limiter.Admit(start), std::nullopt);
}

}  // namespace
}  // namespace norm::server
