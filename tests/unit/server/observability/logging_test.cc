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
