#include "server/transport/grpc_log.h"

#include <gtest/gtest.h>

#include "absl/time/time.h"
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

}  // namespace
}  // namespace norm::server
