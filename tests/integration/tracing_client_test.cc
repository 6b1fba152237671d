// The client's part of a trace: whose spans the server's are, and the request id of what failed.
#include <gmock/gmock.h>

#include "norm/client/client.h"
#include "tests/integration/tracing_fixture.h"

namespace norm::test {
namespace {

using client::CallIdentity;
using client::Client;
using client::ClientOptions;
using client::TensorView;
using testing::SizeIs;

const std::vector<float> kX = {1, 2, 3, 4};

client::RmsNormRequest Request(double eps = 1e-6) {
  return {.x = TensorView::Of(absl::MakeConstSpan(kX), {1, 4}), .eps = eps};
}

class TracingClientTest : public TracingTest {
 protected:
  std::unique_ptr<Client> Connect(ClientOptions options) {
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(server_->address(), options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  std::unique_ptr<Client> Identified(const CallIdentity& identity, ClientOptions options = {}) {
    options.identify = [identity] { return identity; };
    return Connect(options);
  }
};

TEST_F(TracingClientTest, EveryKindOfCallIsInItsCallersTrace) {
  Start();
  {
    ClientOptions in_rows;
    in_rows.chunks.above_bytes = 0;
    const CallIdentity unary{
        .traceparent = Traceparent(1), .tracestate = "rojo=1", .request_id = "u"};
    const CallIdentity rows{.traceparent = Traceparent(2), .tracestate = "", .request_id = "r"};
    const CallIdentity stream{.traceparent = Traceparent(3), .tracestate = "", .request_id = "s"};
    EXPECT_TRUE(Identified(unary)->RmsNorm(Request(), absl::Seconds(60)).ok());
    EXPECT_TRUE(Identified(rows, in_rows)->RmsNorm(Request(), absl::Seconds(60)).ok());
    const auto open = Identified(stream)->OpenStream();
    EXPECT_TRUE(open->Normalize(Request(), absl::Seconds(60)).get().ok());
    const auto failed = open->Normalize(Request(-1), absl::Seconds(60)).get();
    EXPECT_EQ(failed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(client::RequestId(failed.status()), "s");
    EXPECT_TRUE(open->Finish(absl::Seconds(60)).ok());
  }
  const SpanFile file = End();
  EXPECT_EQ(Only(file, kNormalize, TraceId(1)).parent_id, "00000000000000b1");
  EXPECT_EQ(Only(file, kNormalize, TraceId(1)).state, "rojo=1");
  EXPECT_EQ(Only(file, kNormalize, TraceId(1)).attribute("normd.request_id"), "u");
  EXPECT_EQ(Only(file, kStream, TraceId(2)).attribute("normd.request_id"), "r");
  EXPECT_EQ(Only(file, kStream, TraceId(2)).status, 0);  // though the client leaves without an end
  EXPECT_EQ(Only(file, kStream, TraceId(3)).attribute("normd.request_id"), "s");
}

TEST_F(TracingClientTest, FailuresHaveTheServersRequestId) {
  StartWithoutSpans();
  std::string made;
  std::string of_stream;
  {
    const auto client = Connect({});
    const absl::Status failed = client->RmsNorm(Request(-1), absl::Seconds(60)).status();
    made = client::RequestId(failed);
    EXPECT_EQ(client::RequestId(client->RmsNorm(Request(), absl::Seconds(60)).status()), "");
    const auto stream = client->OpenStream();
    of_stream = client::RequestId(stream->Normalize(Request(-1), absl::Seconds(60)).get().status());
    EXPECT_TRUE(stream->Finish(absl::Seconds(60)).ok());
    const absl::Status sent =
        Identified({.request_id = "mine"})->RmsNorm(Request(-1), absl::Seconds(60)).status();
    EXPECT_EQ(client::RequestId(sent), "mine");
  }
  (void)End();
  EXPECT_THAT(made, testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_THAT(of_stream, testing::MatchesRegex("[0-9a-f]{16}"));
  ASSERT_FALSE(failures_.empty());
  EXPECT_EQ(failures_[0]["request_id"], made);
}

TEST_F(TracingClientTest, TriesOfACallAreSiblings) {
  Start();
  server_->gates().before_copy.Close();
  TracedCall first(server_->address(), CanaryRequest(), {});
  ASSERT_TRUE(Await([&] { return server_->gates().before_copy.waiting() == 1; }));
  ClientOptions options;
  options.retry.max_attempts = 3;
  const auto client = Identified({.traceparent = Traceparent(4)}, options);
  EXPECT_TRUE(client->GetServerInfo(absl::Seconds(60)).ok());  // connected
  auto drained = std::async(std::launch::async, [&] { return server_->server().server().Drain(); });
  ASSERT_TRUE(Await(
      [&] { return Call({}, BadRequest()).status.error_code() == grpc::StatusCode::UNAVAILABLE; }));
  EXPECT_EQ(client->RmsNorm(Request(), absl::Seconds(60)).status().code(),
            absl::StatusCode::kUnavailable);
  server_->gates().before_copy.Open();
  EXPECT_TRUE(first.Await().status.ok());
  EXPECT_TRUE(drained.get().ok());
  const SpanFile file = End();
  std::vector<Span> tries = file.Named(kNormalize);
  std::erase_if(tries, [](const Span& span) { return span.trace_id != TraceId(4); });
  EXPECT_THAT(tries, SizeIs(3));
  for (const Span& span : tries) EXPECT_EQ(span.parent_id, "00000000000000b4");
}

TEST_F(TracingClientTest, WhatIsNoIdentityIsNotSent) {
  Start();
  const CallIdentity bad{
      .traceparent = "00-x\n", .tracestate = "a=\x01", .request_id = "two words"};
  EXPECT_TRUE(Identified(bad)->RmsNorm(Request(), absl::Seconds(60)).ok());
  EXPECT_TRUE(Identified({.traceparent = Traceparent(5), .tracestate = "no list"})
                  ->RmsNorm(Request(), absl::Seconds(60))
                  .ok());
  EXPECT_EQ(client::CheckIdentity(
                {.traceparent = Traceparent(5), .tracestate = "a=1", .request_id = "x"}),
            absl::OkStatus());
  const CallIdentity broken[] = {
      {.traceparent = "nonsense"}, {.tracestate = "no list"}, {.request_id = "two words"}};
  for (const CallIdentity& identity : broken) {
    EXPECT_EQ(client::CheckIdentity(identity).code(), absl::StatusCode::kInvalidArgument);
  }
  const SpanFile file = End();
  EXPECT_THAT(file.Named(kNormalize), SizeIs(1));
  EXPECT_EQ(Only(file, kNormalize, TraceId(5)).state, "");
}

}  // namespace
}  // namespace norm::test
