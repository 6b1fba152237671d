// Traces and request ids, from a client's metadata to spans, responses and log lines.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "absl/time/clock.h"
#include "norm/v1/echo.grpc.pb.h"
#include "norm/v1/server.grpc.pb.h"
#include "tests/integration/chunked_stream.h"
#include "tests/integration/tracing_fixture.h"

namespace norm::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

TEST_F(TracingTest, ASampledCallLeavesASpanWithItsStages) {
  Start();
  const Answer answer = Call({{"traceparent", Traceparent(1)},
                              {"tracestate", "rojo=1"},
                              {"tracestate", "congo=2"},
                              {"x-request-id", "abc"}});
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.request_id, "abc");
  const std::string address = server_->address();
  const SpanFile file = End();
  const Span span = Only(file, kNormalize, TraceId(1));
  EXPECT_EQ(span.parent_id, "00000000000000b1");
  EXPECT_EQ(span.state, "rojo=1,congo=2");
  EXPECT_EQ(span.kind, 2);
  EXPECT_EQ(span.status, 0);
  EXPECT_THAT(file.StagesOf(span),
              ElementsAre("decode", "queue", "copy_in", "kernel", "encode", "send"));
  EXPECT_EQ(file.spans().size(), 7U);
  // The same times as the response and the metrics have, not measured twice.
  const Span decode = file.ChildrenOf(span).front();
  EXPECT_NEAR(static_cast<double>(decode.end_ns - decode.start_ns), answer.decode_us * 1e3, 1);
  EXPECT_EQ(span.attribute("rpc.response.status_code"), "OK");
  EXPECT_EQ(span.attribute("normd.request_id"), "abc");
  EXPECT_EQ(span.attribute("normd.op"), "rms_norm");
  EXPECT_EQ(span.attribute("normd.dtype"), "f32");
  EXPECT_EQ(span.attribute("normd.rows"), "1");
  EXPECT_EQ(span.attribute("normd.hidden_size"), "4");
  EXPECT_EQ(span.attribute("normd.bytes_in"), "32");
  EXPECT_EQ(span.attribute("normd.bytes_out"), "16");
  EXPECT_EQ(span.attribute("normd.device"), "cpu");
  EXPECT_EQ(span.attribute("normd.batch_requests"), "1");
  EXPECT_EQ(span.attribute("normd.batch_segments"), "1");
  EXPECT_EQ(span.attribute("client.address"), "127.0.0.1");
  EXPECT_EQ(absl::StrCat(span.attribute("server.address"), ":", span.attribute("server.port")),
            address);
}

TEST_F(TracingTest, TheCallersDecisionCounts) {
  Start(/*sample_ratio=*/1);
  EXPECT_TRUE(Call({{"traceparent", Traceparent(1, "00")}}).status.ok());
  EXPECT_TRUE(Call({{"traceparent", Traceparent(2, "01")}}).status.ok());
  EXPECT_TRUE(Call({{"traceparent", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"}})
                  .status.ok());
  EXPECT_TRUE(Call({{"traceparent", Traceparent(3)}, {"traceparent", Traceparent(3)}}).status.ok());
  EXPECT_TRUE(Call({}).status.ok());
  const SpanFile file = End();
  std::set<std::string> traces;
  int roots = 0;
  for (const Span& span : file.Named(kNormalize)) {
    traces.insert(span.trace_id);
    roots += span.parent_id.empty() ? 1 : 0;
  }
  EXPECT_THAT(traces, SizeIs(4));
  EXPECT_EQ(roots, 3);
  EXPECT_EQ(traces.count(TraceId(1)) + traces.count(TraceId(3)), 0U);
  EXPECT_EQ(traces.count(TraceId(2)), 1U);
}

TEST_F(TracingTest, WithoutARatioOnlySampledCallsLeaveSpans) {
  Start();
  EXPECT_TRUE(Call({}).status.ok());
  EXPECT_TRUE(Call({{"traceparent", Traceparent(1, "00")}}).status.ok());
  EXPECT_TRUE(Call({{"traceparent", "nonsense"}}).status.ok());
  EXPECT_TRUE(End().spans().empty());
}

TEST_F(TracingTest, RequestsOfOneLaunchHaveSpansOfTheirOwn) {
  Start();
  server_->gates().before_copy.Close();
  TracedCall first(server_->address(), CanaryRequest(), {});
  ASSERT_TRUE(Await([&] { return server_->gates().before_copy.waiting() == 1; }));
  std::vector<std::unique_ptr<TracedCall>> calls;
  for (int i = 1; i <= 3; ++i) {
    calls.push_back(std::make_unique<TracedCall>(server_->address(), CanaryRequest(),
                                                 Metadata{{"traceparent", Traceparent(i)}}));
  }
  ASSERT_TRUE(Await([&] { return server_->Load().queued_requests == 3; }));
  server_->gates().before_copy.Open();
  EXPECT_TRUE(first.Await().status.ok());
  for (const auto& call : calls) EXPECT_TRUE(call->Await().status.ok());
  const SpanFile file = End();
  for (int i = 1; i <= 3; ++i) {
    const Span span = Only(file, kNormalize, TraceId(i));
    EXPECT_EQ(span.attribute("normd.batch_requests"), "3");
    EXPECT_EQ(span.attribute("normd.batch_rows"), "3");
    EXPECT_EQ(span.attribute("normd.rows"), "1");
    EXPECT_THAT(file.StagesOf(span),
                ElementsAre("decode", "queue", "copy_in", "kernel", "encode", "send"));
  }
}

TEST_F(TracingTest, CallsThatFailHaveTheirStatusAndTheStagesThatTheyReached) {
  Start();
  const Answer malformed = Call({{"traceparent", Traceparent(1)}}, BadRequest());
  EXPECT_EQ(malformed.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  server_->gates().before_copy.Close();
  TracedCall first(server_->address(), CanaryRequest(), {});
  ASSERT_TRUE(Await([&] { return server_->gates().before_copy.waiting() == 1; }));
  TracedCall left(server_->address(), CanaryRequest(), {{"traceparent", Traceparent(3)}});
  TracedCall late(server_->address(), CanaryRequest(), {{"traceparent", Traceparent(4)}});
  ASSERT_TRUE(Await([&] { return server_->Load().queued_requests == 2; }));
  left.Cancel();
  EXPECT_EQ(left.Await().status.error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(Await([&] { return server_->Load().queued_requests == 1; }));
  server_->clock().Advance(absl::Minutes(20));
  server_->server().scheduler().ReapQueue();
  EXPECT_EQ(late.Await().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  server_->gates().before_copy.Open();
  (void)first.Await();
  const SpanFile file = End();
  const auto expect = [&](int number, const std::string& code,
                          const std::vector<std::string>& stages) {
    const Span span = Only(file, kNormalize, TraceId(number));
    EXPECT_EQ(span.status, 2) << code;
    EXPECT_EQ(span.attribute("rpc.response.status_code"), code);
    EXPECT_EQ(span.attribute("error.type"), code);
    EXPECT_FALSE(span.message.empty());
    std::vector<std::string> reached = file.StagesOf(span);
    std::erase(reached, "send");  // a client that has left may have taken the status or not
    EXPECT_EQ(reached, stages) << code;
  };
  expect(1, "INVALID_ARGUMENT", {});
  expect(3, "CANCELLED", {"decode", "queue"});
  expect(4, "DEADLINE_EXCEEDED", {"decode", "queue"});
  EXPECT_EQ(Only(file, kNormalize, TraceId(1)).message, malformed.status.error_message());
}

TEST_F(TracingTest, WhatADrainingServerRefusesHasSpanAndRequestId) {
  Start();
  server_->gates().before_copy.Close();
  TracedCall first(server_->address(), CanaryRequest(), {});
  ASSERT_TRUE(Await([&] { return server_->gates().before_copy.waiting() == 1; }));
  auto drained = std::async(std::launch::async, [&] { return server_->server().server().Drain(); });
  int number = 0;
  Answer refused;
  ASSERT_TRUE(Await([&] {
    refused = Call({{"traceparent", Traceparent(number = (number + 1) % 10)},
                    {"x-request-id", "of-a-refused-call"}},
                   BadRequest());
    return refused.status.error_code() == grpc::StatusCode::UNAVAILABLE;
  }));
  EXPECT_EQ(refused.request_id, "of-a-refused-call");
  std::set<std::string> made;
  for (int i = 0; i < 20; ++i) made.insert(Call({}, BadRequest()).request_id);
  made.erase("");
  server_->gates().before_copy.Open();
  EXPECT_TRUE(first.Await().status.ok());
  EXPECT_TRUE(drained.get().ok());
  const SpanFile file = End();
  int unavailable = 0;
  for (const Span& span : file.Named(kNormalize)) {
    if (span.attribute("rpc.response.status_code") != "UNAVAILABLE") continue;
    ++unavailable;
    EXPECT_EQ(span.status, 2);
    EXPECT_EQ(span.attribute("normd.request_id"), "of-a-refused-call");
    EXPECT_EQ(span.message, refused.status.error_message());
    EXPECT_EQ(span.trace_id, TraceId(number));
  }
  EXPECT_EQ(unavailable, 1);
  // An id that was made for a refused call stands in the log, or is not sent.
  std::set<std::string> logged;
  for (const nlohmann::json& line : failures_) logged.insert(line["request_id"]);
  EXPECT_TRUE(std::includes(logged.begin(), logged.end(), made.begin(), made.end()));
}

TEST_F(TracingTest, AStreamHasASpanForEachOfItsRequests) {
  Start();
  auto stub = norm::v1::NormalizationService::NewStub(server_->server().Connect());
  grpc::ClientContext context;
  context.AddMetadata("traceparent", Traceparent(5));
  context.AddMetadata("x-request-id", "stream-1");
  auto stream = stub->NormalizeStream(&context);
  norm::v1::StreamRequest request;
  for (const uint64_t id : {1, 2}) {
    request.set_id(id);
    *request.mutable_forward() = id == 1 ? CanaryRequest() : BadRequest();
    ASSERT_TRUE(stream->Write(request));
  }
  norm::v1::NormalizeRequest rows;
  rows.mutable_rms_norm();
  *rows.mutable_x() = Zeros({6, 8});
  for (const norm::v1::StreamRequest& message : ChunkedMessages(3, rows).All(2)) {
    ASSERT_TRUE(stream->Write(message));
  }
  stream->WritesDone();
  std::map<uint64_t, int> finals;
  norm::v1::StreamResponse response;
  while (stream->Read(&response)) finals[response.id()] += response.has_rows() ? 0 : 1;
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_THAT(finals, ElementsAre(std::pair(1, 1), std::pair(2, 1), std::pair(3, 1)));
  const auto& leading = context.GetServerInitialMetadata();
  ASSERT_EQ(leading.count("x-request-id"), 1U);
  EXPECT_EQ(leading.find("x-request-id")->second, "stream-1");

  const SpanFile file = End();
  const Span call = Only(file, kStream, TraceId(5));
  EXPECT_EQ(call.parent_id, "00000000000000b5");
  EXPECT_EQ(call.kind, 2);
  EXPECT_EQ(call.status, 0);
  std::map<std::string, Span> requests;
  for (const Span& span : file.ChildrenOf(call)) {
    EXPECT_EQ(span.name, "stream request");
    EXPECT_EQ(span.attribute("normd.request_id"), "stream-1");
    requests[span.attribute("normd.stream_request")] = span;
  }
  ASSERT_THAT(requests, SizeIs(3));
  EXPECT_THAT(file.StagesOf(requests["1"]),
              ElementsAre("decode", "queue", "copy_in", "kernel", "encode", "send"));
  EXPECT_EQ(requests["1"].status, 0);
  EXPECT_THAT(file.StagesOf(requests["2"]), ElementsAre("send"));
  EXPECT_EQ(requests["2"].status, 2);
  EXPECT_EQ(requests["2"].attribute("error.type"), "INVALID_ARGUMENT");
  EXPECT_THAT(file.StagesOf(requests["3"]), ElementsAre("decode", "send"));
  EXPECT_GE(requests["3"].events, 1U);
  EXPECT_LE(requests["3"].events, 3U);
  EXPECT_EQ(requests["3"].attribute("normd.rows"), "6");
  ASSERT_THAT(failures_, SizeIs(1));
  EXPECT_EQ(failures_[0]["stream_request"], "2");
  EXPECT_EQ(failures_[0]["request_id"], "stream-1");
  EXPECT_EQ(failures_[0]["trace_id"], TraceId(5));
}

TEST_F(TracingTest, AStreamThatBreaksEndsEverySpan) {
  Start();
  server_->gates().before_copy.Close();
  auto stub = norm::v1::NormalizationService::NewStub(server_->server().Connect());
  grpc::ClientContext context;
  context.AddMetadata("traceparent", Traceparent(6));
  auto stream = stub->NormalizeStream(&context);
  norm::v1::StreamRequest request;
  request.set_id(1);
  *request.mutable_forward() = CanaryRequest();
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(Await([&] { return server_->gates().before_copy.waiting() == 1; }));
  norm::v1::NormalizeRequest rows;
  rows.mutable_rms_norm();
  *rows.mutable_x() = Zeros({6, 8});
  const ChunkedMessages chunked(2, rows);
  ASSERT_TRUE(stream->Write(chunked.Header()));
  ASSERT_TRUE(stream->Write(chunked.Rows(0, 2, false)));
  ASSERT_TRUE(Await([&] { return server_->Load().queued_requests == 1; }));
  context.TryCancel();
  (void)stream->Finish();
  ASSERT_TRUE(Await([&] { return server_->Load().queued_requests == 0; }));
  server_->gates().before_copy.Open();
  server_->ExpectNothingLeft();
  const SpanFile file = End();
  const Span call = Only(file, kStream, TraceId(6));
  EXPECT_EQ(call.status, 2);
  EXPECT_EQ(call.attribute("error.type"), "CANCELLED");
  const std::vector<Span> requests = file.ChildrenOf(call);
  ASSERT_THAT(requests, SizeIs(2));
  for (const Span& span : requests) {
    EXPECT_EQ(span.status, 2);
    // Of the one in rows the server may see first that no more rows come.
    if (span.attribute("normd.stream_request") == "1") {
      EXPECT_EQ(span.attribute("error.type"), "CANCELLED");
    }
  }
}

// What is seen first of such a client is that no more rows come, as of one that ends its upload too
// early: which it is shows a moment later. A thread may be held up for longer than is waited for that,
// not each time.
TEST_F(TracingTest, AClientThatGoesInMidUploadIsNotOneThatSendsTooFewRows) {
  Start(/*sample_ratio=*/1);
  auto stub = norm::v1::NormalizationService::NewStub(server_->server().Connect());
  norm::v1::NormalizeRequest rows;
  rows.mutable_rms_norm();
  *rows.mutable_x() = Zeros({6, 8});
  const ChunkedMessages chunked(1, rows);
  constexpr size_t kStreams = 5;
  for (size_t i = 0; i < kStreams; ++i) {
    grpc::ClientContext context;
    auto stream = stub->NormalizeStream(&context);
    ASSERT_TRUE(stream->Write(chunked.Header()));
    ASSERT_TRUE(stream->Write(chunked.Rows(0, 2, false)));
    norm::v1::StreamResponse response;
    ASSERT_TRUE(stream->Read(&response));
    ASSERT_TRUE(response.has_rows());
    context.TryCancel();
    (void)stream->Finish();
    server_->ExpectNothingLeft();
  }
  const SpanFile file = End();
  size_t cancelled = 0;
  for (const Span& span : file.Named("stream request")) {
    EXPECT_EQ(span.status, 2);
    if (span.attribute("error.type") == "CANCELLED") ++cancelled;
  }
  EXPECT_THAT(file.Named("stream request"), SizeIs(kStreams));
  EXPECT_GE(cancelled, 1U);
}

TEST_F(TracingTest, ResponsesThatTheirClientNeverTookEndCancelled) {
  Start(/*sample_ratio=*/1);
  UnreadCall unread(server_->server().Connect(), LargeRequest());
  ASSERT_TRUE(Await([&] { return server_->HoldsResponses(); }));
  unread.Cancel();
  (void)unread.Finish();
  server_->ExpectNothingLeft();
  auto stub = norm::v1::NormalizationService::NewStub(server_->server().Connect());
  grpc::ClientContext context;
  context.AddMetadata("traceparent", Traceparent(6));
  auto stream = stub->NormalizeStream(&context);
  norm::v1::StreamRequest request;
  *request.mutable_forward() = LargeRequest();
  for (uint64_t id = 1; id <= 2; ++id) {
    request.set_id(id);
    ASSERT_TRUE(stream->Write(request));
  }
  // The first waits for its reader with most of it unsent, the second behind it.
  ASSERT_TRUE(server_->Shows("normd_stage_seconds_count{stage=\"encode\"} 3"));
  ASSERT_TRUE(server_->HoldsResponses());
  context.TryCancel();
  (void)stream->Finish();
  server_->ExpectNothingLeft();
  const SpanFile file = End();
  const Span call = Only(file, kStream, TraceId(6));
  EXPECT_EQ(call.attribute("error.type"), "CANCELLED");
  std::vector<Span> requests = file.ChildrenOf(call);
  ASSERT_THAT(requests, SizeIs(2));
  ASSERT_THAT(file.Named(kNormalize), SizeIs(1));
  requests.push_back(file.Named(kNormalize).front());
  for (const Span& span : requests) {
    EXPECT_EQ(span.status, 2);
    EXPECT_EQ(span.attribute("error.type"), "CANCELLED");
    EXPECT_THAT(file.StagesOf(span), ElementsAre("decode", "queue", "copy_in", "kernel", "encode"));
  }
}

TEST_F(TracingTest, RequestIdsComeBackWhereTheyWereSentAndFromFailures) {
  StartWithoutSpans();
  EXPECT_EQ(Call({{"x-request-id", "mine"}}).request_id, "mine");
  EXPECT_EQ(Call({{"x-request-id", "mine"}}, BadRequest()).request_id, "mine");
  EXPECT_EQ(Call({}).request_ids, 0);  // a call that is well costs nothing more
  const Answer failed = Call({}, BadRequest());
  EXPECT_EQ(failed.request_ids, 1);
  EXPECT_THAT(failed.request_id, testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_THAT(failed.status.error_message(), Not(HasSubstr(failed.request_id)));
  for (const std::string& insane : {std::string("two words"), std::string(129, 'x')}) {
    const Answer answer = Call({{"x-request-id", insane}});
    EXPECT_TRUE(answer.status.ok());
    EXPECT_EQ(answer.request_ids, 1);
    EXPECT_THAT(answer.request_id, testing::MatchesRegex("[0-9a-f]{16}"));
  }
  const Answer twice = Call({{"x-request-id", "one"}, {"x-request-id", "two"}});
  EXPECT_EQ(twice.request_ids, 1);
  EXPECT_THAT(twice.request_id, testing::MatchesRegex("[0-9a-f]{16}"));

  const auto channel = server_->server().Connect();
  grpc::ClientContext info_call;
  info_call.AddMetadata("x-request-id", "info");
  norm::v1::ServerInfo info;
  EXPECT_TRUE(norm::v1::ServerService::NewStub(channel)->GetServerInfo(&info_call, {}, &info).ok());
  EXPECT_EQ(info_call.GetServerTrailingMetadata().find("x-request-id")->second, "info");
  grpc::ClientContext echo_call;
  echo_call.AddMetadata("x-request-id", "echo");
  norm::v1::EchoMessage echoed;
  EXPECT_TRUE(norm::v1::EchoService::NewStub(channel)->Echo(&echo_call, {}, &echoed).ok());
  EXPECT_EQ(echo_call.GetServerTrailingMetadata().find("x-request-id")->second, "echo");

  // A stream that asked for none has one, before anything is answered.
  grpc::ClientContext stream_call;
  auto stream = norm::v1::NormalizationService::NewStub(channel)->NormalizeStream(&stream_call);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(stream_call.GetServerInitialMetadata().count("x-request-id"), 1U);
  (void)End();
}

TEST_F(TracingTest, ARefusedCallerIsNamedWithoutItsToken) {
  security_.data_tokens = folder_.Write("tokens", "token-that-is-known\n");
  Start();
  const Answer refused = Call({{"traceparent", Traceparent(8)},
                               {"x-request-id", "refused-1"},
                               {"authorization", "Bearer token-of-nobody"}});
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(refused.request_ids, 0);  // gRPC 1.51 answers, without metadata
  // A span stands beside a line in the log, of which there is one of each code in a second.
  const absl::Time first = absl::Now();
  for (int i = 0; i < 50; ++i) {
    EXPECT_FALSE(Call({{"traceparent", Traceparent(7)}}).status.ok());
  }
  const auto most = static_cast<size_t>(absl::ToInt64Seconds(absl::Now() - first)) + 1;
  EXPECT_TRUE(
      Call({{"traceparent", Traceparent(9)}, {"authorization", "Bearer token-that-is-known"}})
          .status.ok());
  const SpanFile file = End();
  const Span span = Only(file, kNormalize, TraceId(8));
  EXPECT_EQ(span.parent_id, "00000000000000b8");
  EXPECT_EQ(span.status, 2);
  EXPECT_EQ(span.attribute("error.type"), "UNAUTHENTICATED");
  EXPECT_EQ(span.attribute("normd.request_id"), "refused-1");
  EXPECT_EQ(Only(file, kNormalize, TraceId(9)).status, 0);
  ASSERT_THAT(failures_, testing::Not(testing::IsEmpty()));
  EXPECT_LE(failures_.size(), 1 + most);
  EXPECT_EQ(failures_.size(), file.Named(kNormalize).size() - 1);
  EXPECT_EQ(failures_[0]["message"], "call refused");
  EXPECT_EQ(failures_[0]["method"], kNormalize);
  EXPECT_EQ(failures_[0]["request_id"], "refused-1");
  EXPECT_EQ(failures_[0]["trace_id"], TraceId(8));
  EXPECT_EQ(failures_[0]["span_id"], span.id);
  EXPECT_THAT(log_text_, Not(HasSubstr("token-")));
  EXPECT_THAT(file.text(), Not(HasSubstr("token-")));
}

TEST_F(TracingTest, LogLinesOfACallHaveItsIds) {
  Start();
  EXPECT_EQ(Call({{"traceparent", Traceparent(7)},
                  {"x-request-id", "{\"a\":\"b\\"},
                  {"authorization", "Bearer secret-token"}},
                 BadRequest())
                .status.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  for (int i = 0; i < 50; ++i) (void)Call({{"authorization", "Bearer secret-token"}}, BadRequest());
  const SpanFile file = End();
  ASSERT_THAT(failures_, Not(testing::IsEmpty()));
  EXPECT_THAT(failures_.size(), testing::Lt(51U));
  EXPECT_EQ(failures_[0]["request_id"], "{\"a\":\"b\\");
  EXPECT_EQ(failures_[0]["trace_id"], TraceId(7));
  EXPECT_EQ(failures_[0]["span_id"], Only(file, kNormalize, TraceId(7)).id);
  EXPECT_EQ(failures_[0]["method"], kNormalize);
  EXPECT_EQ(failures_[0]["code"], "INVALID_ARGUMENT");
  EXPECT_THAT(log_text_, Not(HasSubstr("secret-token")));
  EXPECT_THAT(file.text(), Not(HasSubstr("secret-token")));
}

}  // namespace
}  // namespace norm::test
