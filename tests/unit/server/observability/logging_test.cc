#include "server/observability/logging.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace norm::server {
namespace {

TEST(LoggingTest, TextFieldsAreQuotedWhenTheyHoldSpaces) {
  EXPECT_EQ(FormatLogMessage(LogFormat::kText, "ready", {{"address", "h:1"}, {"why", "a b"}}),
            "ready address=h:1 why=\"a b\"");
}

TEST(LoggingTest, JsonSurvivesQuotesNewlinesAndBrokenUtf8) {
  const std::string line = absl::StrCat(
      "{", FormatLogMessage(LogFormat::kJson, "say \"x\"\n", {{"key", "\xff%v{}"}}), "}");
  const nlohmann::json parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["message"], "say \"x\"\n");
  EXPECT_EQ(parsed["key"], "\xEF\xBF\xBD%v{}");
}

TEST(LoggingTest, NoValueBreaksOrImitatesALine) {
  const std::string evil = "a\r\nlevel=error x=1\x1b[2J\x7f\xc2\x9b\xff\xe2\x80\xa8\"}{";
  const std::string text =
      FormatLogMessage(LogFormat::kText, "failed", {{"id", evil}, {"ok", "1"}});
  EXPECT_EQ(text, R"(failed id="a\r\nlevel=error x=1\u001b[2J\u007f\u009b\ufffd\u2028\"}{" ok=1)");
  const std::string json =
      absl::StrCat("{", FormatLogMessage(LogFormat::kJson, evil, {{evil, evil}}), "}");
  EXPECT_EQ(json.find_first_of(std::string_view("\n\r\0\x1b", 4)), std::string::npos);
  const nlohmann::json parsed = nlohmann::json::parse(json);
  EXPECT_EQ(parsed.size(), 2U);
  EXPECT_EQ(parsed["message"],
            "a\r\nlevel=error x=1\x1b[2J\x7f\xc2\x9b\xef\xbf\xbd\xe2\x80\xa8\"}{");
}

TEST(LoggingTest, WritesOneJsonLineToStderrAndHonoursTheLevel) {
  testing::internal::CaptureStderr();
  {
    const Logger logger({LogLevel::kWarning, LogFormat::kJson});
    logger.Info("not this");
    logger.Warning("this", {{"code", "7"}});
  }
  const std::string text = testing::internal::GetCapturedStderr();
  const nlohmann::json parsed = nlohmann::json::parse(text);
  EXPECT_EQ(parsed["message"], "this");
  EXPECT_EQ(parsed["level"], "warning");
  EXPECT_EQ(parsed["code"], "7");
}

}  // namespace
}  // namespace norm::server
