// The span log as a file: what a line says, what finds its way into it, and what happens to the file.
#include "server/observability/span_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "server/observability/metrics_impl.h"
#include "server/observability/span_json.h"
#include "tests/integration/await.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::server {
namespace {

using client::ScratchFolder;
using norm::test::Await;
using testing::ElementsAre;
using testing::HasSubstr;

const absl::Time kStart = absl::FromUnixNanos(1'700'000'000'000'000'000);

/// A call of 1 ms with every stage but copy_out.
SpanRecord CallRecord() {
  SpanRecord record;
  record.context = {0x4bf92f3577b34da6, 0xa3ce929d0e0e4736, 0x00f067aa0ba902b7, true,
                    "congo=t61rcWkgMzE"};
  record.parent_id = 0xb7ad6b7169203331;
  record.method = "norm.v1.NormalizationService/Normalize";
  record.request_id = "r-1";
  record.peer = "ipv4:127.0.0.1:41234";
  record.authority = "normd.example:8470";
  record.start = kStart;
  record.end = kStart + absl::Milliseconds(1);
  record.op = Op::kRmsNorm;
  record.dtype = DType::kBF16;
  record.rows = 4;
  record.hidden_size = 64;
  record.bytes_in = 640;
  record.bytes_out = 512;
  record.device = "cuda:0";
  record.batch_requests = 3;
  record.batch_rows = 12;
  record.batch_segments = 2;
  const auto at = [](int us) { return kStart + absl::Microseconds(us); };
  record.SetStage(Stage::kDecode, at(0), absl::Microseconds(100));
  record.SetStage(Stage::kQueue, at(100), absl::Microseconds(200));
  record.SetStage(Stage::kCopyIn, at(300), absl::Microseconds(50));
  record.SetStage(Stage::kKernel, at(350), absl::Microseconds(100));
  record.SetStage(Stage::kEncode, at(500), absl::Microseconds(30));
  record.SetStage(Stage::kSend, at(530), absl::Microseconds(470));
  return record;
}

nlohmann::json Spans(const SpanRecord& record) {
  std::string line;
  AppendSpanLine(SpanLineBegin({"1.2.3", "instance", "host", 42}), record, &line);
  EXPECT_EQ(line.back(), '\n');
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  return nlohmann::json::parse(line)["resourceSpans"][0]["scopeSpans"][0]["spans"];
}

nlohmann::json Attribute(const nlohmann::json& of, const std::string& key) {
  for (const nlohmann::json& one : of["attributes"]) {
    if (one["key"] == key) return one["value"];
  }
  return nullptr;
}

TEST(SpanJsonTest, ACallHasItsParentAndConventionalAttributes) {
  const nlohmann::json span = Spans(CallRecord())[0];
  EXPECT_EQ(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(span["spanId"], "00f067aa0ba902b7");
  EXPECT_EQ(span["parentSpanId"], "b7ad6b7169203331");
  EXPECT_EQ(span["traceState"], "congo=t61rcWkgMzE");
  EXPECT_EQ(span["flags"], 0x301);  // sampled, the parent is known to be remote
  EXPECT_EQ(span["kind"], 2);       // SPAN_KIND_SERVER
  EXPECT_EQ(span["name"], "norm.v1.NormalizationService/Normalize");
  EXPECT_EQ(span["startTimeUnixNano"], "1700000000000000000");
  EXPECT_EQ(span["endTimeUnixNano"], "1700000000001000000");
  EXPECT_FALSE(span.contains("status"));
  const auto text = [&](const char* key) { return Attribute(span, key)["stringValue"]; };
  const auto number = [&](const char* key) { return Attribute(span, key)["intValue"]; };
  EXPECT_EQ(text("rpc.system.name"), "grpc");
  EXPECT_EQ(text("rpc.method"), "norm.v1.NormalizationService/Normalize");
  EXPECT_EQ(text("rpc.response.status_code"), "OK");
  EXPECT_EQ(text("server.address"), "normd.example");
  EXPECT_EQ(number("server.port"), "8470");
  EXPECT_EQ(text("client.address"), "127.0.0.1");
  EXPECT_EQ(number("client.port"), "41234");
  EXPECT_EQ(text("normd.request_id"), "r-1");
  EXPECT_EQ(text("normd.op"), "rms_norm");
  EXPECT_EQ(text("normd.direction"), "forward");
  EXPECT_EQ(text("normd.dtype"), "bf16");
  EXPECT_EQ(number("normd.rows"), "4");
  EXPECT_EQ(number("normd.hidden_size"), "64");
  EXPECT_EQ(number("normd.bytes_in"), "640");
  EXPECT_EQ(number("normd.bytes_out"), "512");
  EXPECT_EQ(text("normd.device"), "cuda:0");
  EXPECT_EQ(number("normd.batch_requests"), "3");
  EXPECT_EQ(number("normd.batch_rows"), "12");
  EXPECT_EQ(number("normd.batch_segments"), "2");
  EXPECT_TRUE(Attribute(span, "error.type").is_null());
}

TEST(SpanJsonTest, StagesAreChildrenInOrder) {
  const nlohmann::json spans = Spans(CallRecord());
  std::vector<std::string> names;
  std::vector<std::string> times;
  for (size_t i = 1; i < spans.size(); ++i) {
    names.push_back(spans[i]["name"]);
    times.push_back(spans[i]["startTimeUnixNano"].get<std::string>().substr(10) + "-" +
                    spans[i]["endTimeUnixNano"].get<std::string>().substr(10));
    EXPECT_EQ(spans[i]["traceId"], spans[0]["traceId"]);
    EXPECT_EQ(spans[i]["parentSpanId"], spans[0]["spanId"]);
    EXPECT_EQ(spans[i]["kind"], 1);  // SPAN_KIND_INTERNAL
    EXPECT_EQ(spans[i]["flags"], 0x101);
    EXPECT_NE(spans[i]["spanId"], spans[i - 1]["spanId"]);
  }
  EXPECT_THAT(names, ElementsAre("decode", "queue", "copy_in", "kernel", "encode", "send"));
  EXPECT_THAT(times,
              ElementsAre("000000000-000100000", "000100000-000300000", "000300000-000350000",
                          "000350000-000450000", "000500000-000530000", "000530000-001000000"));
}

TEST(SpanJsonTest, StagesThatOverlapOrPassTheEndAreCut) {
  SpanRecord record = CallRecord();
  record.SetStage(Stage::kCopyIn, kStart + absl::Microseconds(300), absl::Microseconds(400));
  record.SetStage(Stage::kKernel, kStart + absl::Microseconds(350), absl::Microseconds(100));
  record.SetStage(Stage::kSend, kStart + absl::Microseconds(530), absl::Seconds(1));
  const nlohmann::json spans = Spans(record);
  EXPECT_EQ(spans[3]["endTimeUnixNano"], "1700000000000700000");  // copy_in as it is
  EXPECT_EQ(spans[4]["startTimeUnixNano"],
            "1700000000000700000");  // kernel after it, without length
  EXPECT_EQ(spans[4]["endTimeUnixNano"], "1700000000000700000");
  EXPECT_EQ(spans[6]["endTimeUnixNano"], spans[0]["endTimeUnixNano"]);
  record.end = record.start - absl::Seconds(1);  // the clock was set back
  for (const nlohmann::json& span : Spans(record)) {
    EXPECT_EQ(span["startTimeUnixNano"], "1700000000000000000");
    EXPECT_EQ(span["endTimeUnixNano"], "1700000000000000000");
  }
}

TEST(SpanJsonTest, FailuresSayCodeAndMessageInOneLine) {
  SpanRecord record = CallRecord();
  record.parent_id = 0;
  record.peer = "unix:/run/normd.sock";
  record.authority = "[::1]:8470";
  record.request_id = "a\"b\\c";
  record.status = absl::DeadlineExceededError("first\nsecond \x1b[31m \xff\xfe \x01");
  const nlohmann::json span = Spans(record)[0];
  EXPECT_EQ(span["status"]["code"], 2);  // STATUS_CODE_ERROR
  EXPECT_EQ(span["status"]["message"], "first\nsecond \x1b[31m \xef\xbf\xbd\xef\xbf\xbd \x01");
  EXPECT_EQ(Attribute(span, "rpc.response.status_code")["stringValue"], "DEADLINE_EXCEEDED");
  EXPECT_EQ(Attribute(span, "error.type")["stringValue"], "DEADLINE_EXCEEDED");
  EXPECT_EQ(Attribute(span, "normd.request_id")["stringValue"], "a\"b\\c");
  EXPECT_EQ(Attribute(span, "client.address")["stringValue"], "unix:/run/normd.sock");
  EXPECT_EQ(Attribute(span, "server.address")["stringValue"], "::1");
  EXPECT_FALSE(span.contains("parentSpanId"));
  EXPECT_EQ(span["flags"], 1);
  record.status = absl::InternalError(std::string(5000, 'x'));
  EXPECT_EQ(Spans(record)[0]["status"]["message"].get<std::string>().size(), 1024U);
}

TEST(SpanJsonTest, ARequestInRowsHasAnEventForEachLaunch) {
  SpanRecord record = CallRecord();
  record.is_call = false;
  record.stream_request = 7;
  record.launches.push_back({kStart + absl::Microseconds(600), 0, 8, absl::Microseconds(1),
                             absl::Microseconds(2), absl::Microseconds(3), absl::ZeroDuration()});
  record.launches.push_back({kStart + absl::Seconds(9), 8, 4});
  record.dropped_launches = 5;
  const nlohmann::json span = Spans(record)[0];
  EXPECT_EQ(span["name"], "stream request");
  EXPECT_EQ(span["kind"], 1);
  EXPECT_EQ(span["flags"], 0x101);
  EXPECT_EQ(Attribute(span, "normd.stream_request")["intValue"], "7");
  EXPECT_TRUE(Attribute(span, "rpc.method").is_null());
  ASSERT_EQ(span["events"].size(), 2U);
  EXPECT_EQ(span["events"][0]["name"], "launch");
  EXPECT_EQ(span["events"][0]["timeUnixNano"], "1700000000000600000");
  EXPECT_EQ(Attribute(span["events"][0], "normd.rows")["intValue"], "8");
  EXPECT_EQ(Attribute(span["events"][0], "normd.kernel_us")["doubleValue"], 3.0);
  EXPECT_EQ(Attribute(span["events"][1], "normd.first_row")["intValue"], "8");
  EXPECT_EQ(span["events"][1]["timeUnixNano"], span["endTimeUnixNano"]);
  EXPECT_EQ(span["droppedEventsCount"], 5);
}

class SpanLogTest : public testing::Test {
 protected:
  std::unique_ptr<SpanLog> Open(const std::string& path, double ratio = 0) {
    absl::StatusOr<std::unique_ptr<SpanLog>> log =
        SpanLog::Open({path, ratio, "1.2.3"}, metrics_, log_);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  static std::unique_ptr<SpanRecord> Named(const std::string& request_id) {
    auto record = std::make_unique<SpanRecord>(CallRecord());
    record->request_id = request_id;
    return record;
  }
  /// Request ids of the lines of a file, each of which must be whole.
  static std::vector<std::string> Ids(const std::string& path) {
    std::vector<std::string> ids;
    const std::string text = ScratchFolder::Read(path);
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const nlohmann::json parsed =
          nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (parsed.is_discarded()) {
        ids.emplace_back("broken");
        continue;
      }
      ids.push_back(Attribute(parsed["resourceSpans"][0]["scopeSpans"][0]["spans"][0],
                              "normd.request_id")["stringValue"]);
    }
    return ids;
  }
  uint64_t written() const { return Read(metrics_.impl()->spans_written); }
  uint64_t dropped() const { return Read(metrics_.impl()->spans_dropped); }

  const ScratchFolder folder_;
  const std::string path_ = folder_ / "spans.jsonl";
  Metrics metrics_{{"cpu"}, {}};
  const Logger log_{{LogLevel::kError, LogFormat::kText}};
};

TEST_F(SpanLogTest, WritesWhatIsQueuedBeforeItEnds) {
  {
    const auto log = Open(path_);
    for (int i = 0; i < 1000; ++i) log->Record(Named(std::to_string(i)));
  }
  const std::vector<std::string> ids = Ids(path_);
  ASSERT_EQ(ids.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], std::to_string(i));
  EXPECT_EQ(written(), 1000U);
  EXPECT_EQ(dropped(), 0U);
  struct stat file {};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0007, 0U);  // nobody else reads it
}

TEST_F(SpanLogTest, GoesOnInTheFileThatWasThere) {
  { Open(path_)->Record(Named("first")); }
  { Open(path_)->Record(Named("second")); }
  EXPECT_THAT(Ids(path_), ElementsAre("first", "second"));
}

TEST_F(SpanLogTest, ARenamedFileIsMadeAnew) {
  const auto log = Open(path_);
  log->Record(Named("before"));
  ASSERT_TRUE(Await([&] { return written() == 1; }));
  std::filesystem::rename(path_, path_ + ".1");
  log->Record(Named("after"));
  ASSERT_TRUE(Await([&] { return written() == 2; }));
  EXPECT_THAT(Ids(path_ + ".1"), ElementsAre("before"));
  EXPECT_THAT(Ids(path_), ElementsAre("after"));
}

TEST_F(SpanLogTest, ATruncatedFileGoesOnFromItsNewEnd) {
  const auto log = Open(path_);
  log->Record(Named("before"));
  ASSERT_TRUE(Await([&] { return written() == 1; }));
  std::filesystem::resize_file(path_, 0);
  log->Record(Named("after"));
  ASSERT_TRUE(Await([&] { return written() == 2; }));
  EXPECT_THAT(Ids(path_), ElementsAre("after"));
}

TEST_F(SpanLogTest, WhatCannotBeWrittenIsCountedAndSaid) {
  testing::internal::CaptureStderr();
  const std::string folder = folder_ / "gone";
  std::filesystem::create_directory(folder);
  {
    const auto log = Open(folder + "/spans.jsonl");
    std::filesystem::remove_all(folder);
    log->Record(Named("lost"));
    EXPECT_TRUE(Await([&] { return dropped() == 1; }));
    std::filesystem::create_directory(folder);
    log->Record(Named("kept"));
    EXPECT_TRUE(Await([&] { return written() == 1; }));
  }
  EXPECT_THAT(Ids(folder + "/spans.jsonl"), ElementsAre("kept"));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("span log problem="));
  const absl::Status nowhere =
      SpanLog::Open({folder_ / "no/folder", 0, ""}, metrics_, log_).status();
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr("No such file or directory"));
}

/// A pipe whose reader stands still: who records does not wait, the queue is bounded, and the end comes.
TEST_F(SpanLogTest, AReaderThatStandsStillCostsSpansAndNoTime) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(SpanLog::Open({path_, 0, ""}, metrics_, log_).ok());  // nobody reads it
  const int reader = open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  constexpr uint64_t kRecords = 40'000;
  {
    const auto log = Open(path_);
    for (uint64_t i = 0; i < kRecords; ++i) log->Record(Named("r"));
    EXPECT_GT(dropped(), 0U);
  }
  EXPECT_EQ(written() + dropped(), kRecords);
  close(reader);
}

TEST_F(SpanLogTest, AReaderThatGoesIsNoSignal) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const int reader = open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  testing::internal::CaptureStderr();
  {
    const auto log = Open(path_);
    close(reader);
    log->Record(Named("lost"));
    EXPECT_TRUE(Await([&] { return dropped() == 1; }));
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("Broken pipe"));
}

TEST_F(SpanLogTest, SamplesAsTheCallerHasDecidedAndElseByTraceId) {
  const auto none = Open(path_, 0);
  const auto half = Open(path_, 0.5);
  const auto all = Open(path_, 1);
  tracing::TraceContext low = tracing::NewTrace();
  low.trace_id_low = 0xff7fffffffffffff;  // of 56 bits, just below the middle
  tracing::TraceContext high = low;
  high.trace_id_low = 0x0080000000000000;  // the middle
  const std::optional<tracing::TraceContext> root;
  EXPECT_FALSE(none->Samples(root, low));
  EXPECT_FALSE(none->Samples(root, high));
  EXPECT_FALSE(half->Samples(root, low));
  EXPECT_TRUE(half->Samples(root, high));
  high.trace_id_low = 0;
  EXPECT_TRUE(all->Samples(root, high));
  for (const SpanLog* log : {none.get(), half.get(), all.get()}) {
    tracing::TraceContext parent = tracing::NewTrace();
    EXPECT_FALSE(log->Samples(parent, high));
    parent.sampled = true;
    EXPECT_TRUE(log->Samples(parent, low));
  }
}

}  // namespace
}  // namespace norm::server
