// What a call's metadata make of it, and the log lines of calls that fail.
#include "server/transport/middleware/call_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "server/transport/middleware/failure_log.h"
#include "tests/support/fake_clock.h"

namespace norm::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr char kTraceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

CallIdentity Of(const std::vector<std::pair<std::string, std::string>>& metadata) {
  IdentityHeaders headers;
  for (const auto& [key, value] : metadata) headers.Add(key, value);
  return Identify(headers, nullptr);
}

TEST(CallIdentityTest, TakesWhatTheClientSent) {
  const CallIdentity identity = Of({{"user-agent", "x"},
                                    {"x-request-id", "abc-1"},
                                    {"traceparent", kTraceparent},
                                    {"tracestate", "rojo=1"},
                                    {"tracestate", "congo=2"},
                                    {"authorization", "Bearer secret"}});
  EXPECT_EQ(identity.request_id, "abc-1");
  EXPECT_TRUE(identity.request_id_given);
  ASSERT_TRUE(identity.parent.has_value());
  EXPECT_EQ(tracing::FormatTraceparent(*identity.parent), kTraceparent);
  EXPECT_EQ(tracing::TraceIdText(identity.span), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_NE(identity.span.span_id, identity.parent->span_id);
  EXPECT_EQ(identity.span.state, "rojo=1,congo=2");
  EXPECT_FALSE(identity.sampled);  // nothing records it
  ASSERT_NE(identity.logged_span(), nullptr);
  EXPECT_EQ(identity.logged_span()->span_id, 0x00f067aa0ba902b7U);
}

TEST(CallIdentityTest, MakesAnIdThatIsThatOfItsSpan) {
  for (const auto& metadata : std::vector<std::vector<std::pair<std::string, std::string>>>{
           {},
           {{"x-request-id", ""}},
           {{"x-request-id", "two words"}},
           {{"x-request-id", std::string(129, 'x')}},
           {{"x-request-id", "one"}, {"x-request-id", "two"}}}) {
    const CallIdentity identity = Of(metadata);
    EXPECT_FALSE(identity.request_id_given);
    EXPECT_EQ(identity.request_id, tracing::SpanIdText(identity.span.span_id));
    EXPECT_FALSE(identity.parent.has_value());
    EXPECT_EQ(identity.logged_span(), nullptr);
  }
}

TEST(CallIdentityTest, MalformedOrRepeatedContextBeginsANewTrace) {
  for (const auto& metadata : std::vector<std::vector<std::pair<std::string, std::string>>>{
           {{"traceparent", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"}},
           {{"traceparent", kTraceparent}, {"traceparent", kTraceparent}},
           {{"trace-parent", kTraceparent}},
           {{"traceparent", std::string(8000, '0')}}}) {
    const CallIdentity identity = Of(metadata);
    EXPECT_FALSE(identity.parent.has_value());
    EXPECT_NE(tracing::TraceIdText(identity.span), "4bf92f3577b34da6a3ce929d0e0e4736");
  }
}

class FailureLogTest : public testing::Test {
 protected:
  void Fail(const absl::Status& status, const CallIdentity& identity) {
    const std::optional<int64_t> held_back = failures_.Admit(status.code());
    if (!held_back.has_value()) return;
    failures_.Write("call failed", "norm.v1.NormalizationService/Normalize", status, identity,
                    std::nullopt, *held_back);
  }
  /// Every line, which must be JSON.
  static std::vector<nlohmann::json> Captured() {
    std::vector<nlohmann::json> lines;
    const std::string text = testing::internal::GetCapturedStderr();
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }

  norm::test::FakeClock clock_;
  const Logger log_{{LogLevel::kInfo, LogFormat::kJson}};
  FailureLog failures_{log_, clock_};
};

TEST_F(FailureLogTest, OneLineOfEachCodeInASecond) {
  testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) {
    Fail(absl::InvalidArgumentError("a"), {});
    Fail(absl::InternalError("b"), {});
  }
  clock_.Advance(absl::Milliseconds(999));
  Fail(absl::InvalidArgumentError("c"), {});
  clock_.Advance(absl::Milliseconds(1));
  Fail(absl::InvalidArgumentError("d"), {});
  const std::vector<nlohmann::json> lines = Captured();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(lines[0]["level"], "info");
  EXPECT_EQ(lines[0]["held_back"], "0");
  EXPECT_EQ(lines[1]["code"], "INTERNAL");
  EXPECT_EQ(lines[1]["level"], "error");
  EXPECT_EQ(lines[2]["reason"], "d");
  EXPECT_EQ(lines[2]["held_back"], "100");
}

TEST_F(FailureLogTest, LinesNameRequestAndTraceAndNothingBreaksThem) {
  testing::internal::CaptureStderr();
  CallIdentity identity =
      Of({{"x-request-id", "{\"level\":\"error\"}\\"}, {"traceparent", kTraceparent}});
  Fail(absl::UnavailableError("model \"x\"\n{\"level\":\"info\"}\r\x1b[0m\xff \xe2\x80\xa8"),
       identity);
  identity.sampled = true;
  Fail(absl::DataLossError(std::string(10'000, 'x')), identity);
  const std::vector<nlohmann::json> lines = Captured();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["level"], "warning");
  EXPECT_EQ(lines[0]["message"], "call failed");
  EXPECT_EQ(lines[0]["method"], "norm.v1.NormalizationService/Normalize");
  EXPECT_EQ(lines[0]["request_id"], "{\"level\":\"error\"}\\");
  EXPECT_EQ(lines[0]["reason"],
            "model \"x\"\n{\"level\":\"info\"}\r\x1b[0m\xef\xbf\xbd \xe2\x80\xa8");
  EXPECT_EQ(lines[0]["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(lines[0]["span_id"], "00f067aa0ba902b7");
  EXPECT_EQ(lines[1]["span_id"], tracing::SpanIdText(identity.span.span_id));
  EXPECT_EQ(lines[1]["reason"].get<std::string>().size(), 500U);
}

}  // namespace
}  // namespace norm::server
