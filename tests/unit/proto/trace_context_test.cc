// traceparent and tracestate against the Recommendation: its own examples, and the cases of its test suite.
#include "proto/tracing/trace_context.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/tracing/request_id.h"

namespace norm::tracing {
namespace {

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParentId[] = "00f067aa0ba902b7";

std::string Combine(const std::vector<std::string>& values) {
  return CombineTracestate(std::vector<absl::string_view>(values.begin(), values.end()));
}

TEST(TraceparentTest, ExamplesOfTheRecommendation) {
  const auto sampled = ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  ASSERT_TRUE(sampled.has_value());
  EXPECT_EQ(sampled->trace_id_high, 0x4bf92f3577b34da6U);
  EXPECT_EQ(sampled->trace_id_low, 0xa3ce929d0e0e4736U);
  EXPECT_EQ(sampled->span_id, 0x00f067aa0ba902b7U);
  EXPECT_TRUE(sampled->sampled);
  EXPECT_EQ(TraceIdText(*sampled), kTraceId);
  EXPECT_EQ(SpanIdText(sampled->span_id), kParentId);
  EXPECT_EQ(FormatTraceparent(*sampled), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  const auto unsampled =
      ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
  ASSERT_TRUE(unsampled.has_value());
  EXPECT_FALSE(unsampled->sampled);
  EXPECT_EQ(FormatTraceparent(*unsampled),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
}

TEST(TraceparentTest, OnlyTheLowestFlagSaysSampled) {
  for (const auto& [flags, sampled] :
       {std::pair("02", false), {"03", true}, {"fe", false}, {"ff", true}}) {
    const auto context =
        ParseTraceparent(absl::StrCat("00-", kTraceId, "-", kParentId, "-", flags));
    ASSERT_TRUE(context.has_value()) << flags;
    EXPECT_EQ(context->sampled, sampled) << flags;
  }
}

TEST(TraceparentTest, LaterVersionsAreReadAsFarAsTheyAreKnown) {
  for (const char* rest : {"", "-", "-what-the-future-will-be-like"}) {
    const auto context = ParseTraceparent(
        absl::StrCat("cc-12345678901234567890123456789012-1234567890123456-01", rest));
    ASSERT_TRUE(context.has_value()) << rest;
    EXPECT_EQ(TraceIdText(*context), "12345678901234567890123456789012");
    EXPECT_EQ(context->span_id, 0x1234567890123456U);
    EXPECT_TRUE(context->sampled);
    EXPECT_EQ(FormatTraceparent(*context).substr(0, 3), "00-");
  }
  EXPECT_FALSE(ParseTraceparent("cc-12345678901234567890123456789012-1234567890123456-01.what"));
  EXPECT_FALSE(ParseTraceparent("cc-12345678901234567890123456789012-1234567890123456-0"));
}

TEST(TraceparentTest, BlanksAroundItAreNoPartOfIt) {
  const std::string value = absl::StrCat("00-", kTraceId, "-", kParentId, "-01");
  for (const std::string& text :
       {" " + value, "\t" + value, value + " ", value + "\t", "\t " + value + " \t"}) {
    EXPECT_TRUE(ParseTraceparent(text).has_value()) << text;
  }
}

TEST(TraceparentTest, EverythingElseBeginsANewTrace) {
  for (const char* text : {
           "",
           "00",
           "00-12345678901234567890123456789012-1234567890123456-01.",
           "00-12345678901234567890123456789012-1234567890123456-01-what-the-future-will-be-like",
           "ff-12345678901234567890123456789012-1234567890123456-01",
           ".0-12345678901234567890123456789012-1234567890123456-01",
           "0.-12345678901234567890123456789012-1234567890123456-01",
           "0-12345678901234567890123456789012-1234567890123456-01",
           "000-12345678901234567890123456789012-1234567890123456-01",
           "0000-12345678901234567890123456789012-1234567890123456-01",
           "CC-12345678901234567890123456789012-1234567890123456-01",
           "00-00000000000000000000000000000000-1234567890123456-01",
           "00-.2345678901234567890123456789012-1234567890123456-01",
           "00-1234567890123456789012345678901.-1234567890123456-01",
           "00-123456789012345678901234567890123-1234567890123456-01",
           "00-1234567890123456789012345678901-1234567890123456-01",
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
           "00-12345678901234567890123456789012-0000000000000000-01",
           "00-12345678901234567890123456789012-.234567890123456-01",
           "00-12345678901234567890123456789012-123456789012345.-01",
           "00-12345678901234567890123456789012-12345678901234567-01",
           "00-12345678901234567890123456789012-123456789012345-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01",
           "00-12345678901234567890123456789012-1234567890123456-.0",
           "00-12345678901234567890123456789012-1234567890123456-0.",
           "00-12345678901234567890123456789012-1234567890123456-0A",
           "00-12345678901234567890123456789012-1234567890123456-001",
           "00-12345678901234567890123456789012-1234567890123456-1",
           "00-12345678901234567890123456789012_1234567890123456-01",
           "00-12345678901234567890123456789012-1234567890123456-01\n",
           "00 12345678901234567890123456789012 1234567890123456 01",
       }) {
    EXPECT_FALSE(ParseTraceparent(text).has_value()) << text;
  }
}

TEST(TraceContextTest, OneTraceparentCountsAndItsStateComesWithIt) {
  const std::string first = absl::StrCat("00-", kTraceId, "-", kParentId, "-01");
  const std::string second = "00-12345678901234567890123456789012-1234567890123456-01";
  EXPECT_FALSE(ParseTraceContext({}, {"congo=t61rcWkgMzE"}).has_value());
  EXPECT_FALSE(ParseTraceContext({first, second}, {}).has_value());
  EXPECT_FALSE(ParseTraceContext({first, first}, {}).has_value());
  const auto context = ParseTraceContext({first}, {"rojo=00f067aa0ba902b7", "congo=t61rcWkgMzE"});
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->state, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  const auto without = ParseTraceContext({first}, {"not a list"});
  ASSERT_TRUE(without.has_value());
  EXPECT_EQ(TraceIdText(*without), kTraceId);
  EXPECT_EQ(without->state, "");
}

TEST(TracestateTest, ListsAreTakenAsTheyCome) {
  EXPECT_EQ(Combine({"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"}),
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  EXPECT_EQ(Combine({" foo=1 \t,\t bar=2 ", ",baz=3,,"}), "foo=1,bar=2,baz=3");
  EXPECT_EQ(Combine({"", " "}), "");
  EXPECT_EQ(Combine({"foo= leading blanks belong to it"}), "foo= leading blanks belong to it");
  EXPECT_EQ(Combine({"fw529a3039@dt=FfdhZ,a-b_c/d*e@f=!~,0nine=1"}),
            "fw529a3039@dt=FfdhZ,a-b_c/d*e@f=!~,0nine=1");
  EXPECT_EQ(Combine({"foo=1,foo=2"}), "foo=1,foo=2");
}

TEST(TracestateTest, OneMalformedMemberVoidsTheList) {
  for (const std::string& text :
       {std::string("foo"), std::string("foo="), std::string("=1"), std::string("foo 1=1"),
        std::string("FOO=1"), std::string("foo.bar=1"), std::string("@foo=1"),
        std::string("foo=bar=baz"), std::string("foo=a\x7f"), std::string("foo=\xc3\xa4"),
        std::string("foo =1"), std::string("-foo=1"), std::string(257, 'z') + "=1",
        "foo=" + std::string(257, 'v')}) {
    EXPECT_EQ(Combine({text}), "") << text;
    EXPECT_EQ(Combine({"bar=1", text, "baz=3"}), "") << text;
  }
  EXPECT_EQ(Combine({std::string(256, 'z') + "=1"}), std::string(256, 'z') + "=1");
}

TEST(TracestateTest, ThirtyTwoMembersAreTheMost) {
  std::vector<std::string> members;
  for (int i = 1; i <= 32; ++i) members.push_back(absl::StrCat("k", i, "=", i));
  EXPECT_EQ(Combine({absl::StrJoin(members, ",")}), absl::StrJoin(members, ","));
  members.emplace_back("one=more");
  EXPECT_EQ(Combine({absl::StrJoin(members, ",")}), "");
}

TEST(TracestateTest, LongListsLoseLongMembersFirstAndThenTheLast) {
  const std::string long_member = "long=" + std::string(200, 'x');  // 205 characters
  const std::string middle = "middle=" + std::string(121, 'm');     // 128
  // 128 + 3 + 128 + 2 + 128 + ... : with the long one 128 * 3 + 205 + 3 > 512.
  EXPECT_EQ(Combine({middle, long_member, middle, middle}),
            absl::StrJoin({middle, middle, middle}, ","));
  // Without any longer than 128: four of them are 515 characters.
  EXPECT_EQ(Combine({middle, middle, middle, middle}),
            absl::StrJoin({middle, middle, middle}, ","));
  // Exactly 512 stay: 3 * 128 + 3 commas + 125.
  const std::string rest = "r=" + std::string(123, 'r');
  EXPECT_EQ(Combine({middle, middle, middle, rest}).size(), 512U);
}

TEST(NewTraceTest, IdsAreNotZeroAndDiffer) {
  std::set<uint64_t> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(NewId());
  EXPECT_EQ(ids.size(), 1000U);
  EXPECT_FALSE(ids.contains(0));
  const TraceContext one = NewTrace();
  EXPECT_FALSE(one.sampled);
  const auto parsed = ParseTraceparent(FormatTraceparent(one));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(TraceIdText(*parsed), TraceIdText(one));
  EXPECT_NE(TraceIdText(NewTrace()), TraceIdText(one));
}

TEST(RequestIdTest, VisibleAsciiOfBoundedLength) {
  for (const std::string& text :
       {std::string("a"), std::string("f058ebd6-02f7-4d3f-942e-904344e8cde5"),
        std::string("!\"#$%&'()*+,-./:;<=>?@~"), std::string(128, 'x')}) {
    EXPECT_TRUE(IsRequestId(text)) << text;
  }
  for (const std::string& text : {std::string(), std::string("a b"), std::string("a\nb"),
                                  std::string("a\tb"), std::string(1, '\0'), std::string("\x7f"),
                                  std::string("\xc3\xa4"), std::string(129, 'x')}) {
    EXPECT_FALSE(IsRequestId(text)) << text;
  }
}

}  // namespace
}  // namespace norm::tracing
