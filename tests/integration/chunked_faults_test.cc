// Chunked requests whose clients stall, leave, never read, or open more than a stream may.
#include <algorithm>
#include <string>
#include <thread>

#include "tests/integration/chunked_fixture.h"

namespace norm::server {
namespace {

using ChunkedFaultsTest = ChunkedFixture;

TEST_F(ChunkedFaultsTest, TenThousandOpenIds) {
  InProcessServerOptions options;
  options.grpc.max_stream_uploads = 20;
  Start(options);
  OpenStream stream(*stub_);
  constexpr uint64_t kIds = 10000;
  for (uint64_t id = 0; id < kIds; ++id) {
    ASSERT_TRUE(stream.Write(ChunkedMessages(id + kIds, EightRows()).Header()));
  }
  for (uint64_t id = 20; id < kIds; ++id) {
    ExpectError(stream.AwaitFinal(id + kIds), grpc::StatusCode::RESOURCE_EXHAUSTED,
                "the stream has 20 chunked requests in flight, the limit max_stream_uploads is 20");
  }
  // The ones within the limit go on.
  for (uint64_t id = 0; id < 10; ++id) {
    stream.Write(ChunkedMessages(id + kIds, EightRows()).Rows(0, 8, true));
    EXPECT_EQ(stream.AwaitFinal(id + kIds).final.status().code(), 0);
  }
  ExpectOthersUnharmed(stream);
  for (uint64_t id = 10; id < 20; ++id) {
    EXPECT_EQ(stream.finals(id + kIds), 0);
    stream.Write(Cancel(id + kIds));
    ExpectError(stream.AwaitFinal(id + kIds), grpc::StatusCode::CANCELLED, "cancelled");
  }
  ExpectNothingLeft();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ChunkedFaultsTest, DeadlineThatPassesDuringTheUpload) {
  Start();
  OpenStream stream(*stub_);
  StreamRequest header = Cut().Header();
  header.set_timeout_us(20'000);
  stream.Write(header);
  stream.Write(Cut().Rows(0, 3, false));
  ExpectError(stream.AwaitFinal(kId), grpc::StatusCode::DEADLINE_EXCEEDED, "deadline passed ");
  ExpectOthersUnharmed(stream);
  ExpectNothingLeft();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ChunkedFaultsTest, HalfATensorAndThenSilence) {
  InProcessServerOptions options;
  options.grpc.stream_stall_timeout = absl::Seconds(1);
  Start(options);
  OpenStream stream(*stub_);
  // One whose rows are gathered, and one whose rows are not.
  NormalizeRequest training;
  training.mutable_batch_norm()->set_mode(norm::v1::BatchNorm::MODE_TRAINING);
  *training.mutable_x() = Zeros({8, 4});
  const ChunkedMessages gathered(kId + 1, training);
  for (const ChunkedMessages& messages : {Cut(), gathered}) {
    stream.Write(messages.Header());
    stream.Write(messages.Rows(0, 4, false));
  }
  for (const uint64_t id : {kId, kId + 1}) {
    ExpectError(stream.AwaitFinal(id), grpc::StatusCode::DEADLINE_EXCEEDED,
                "no rows came for 1s after 4 of 8");
  }
  ExpectNothingLeft();
  ExpectOthersUnharmed(stream);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ChunkedFaultsTest, ClientThatNeverReadsLosesItsStream) {
  InProcessServerOptions options;
  options.grpc.write_timeout = absl::Milliseconds(200);
  options.grpc.stream_window_bytes = 1 << 20;
  Start(options);
  NormalizeRequest large = CanaryRequest();
  *large.mutable_x() = Zeros({1 << 20, 16});  // 64 MiB: more than windows and sockets take
  *large.mutable_weight() = Zeros({16});
  const ChunkedMessages messages(kId, large);
  grpc::ClientContext context;
  const auto stream = stub_->NormalizeStream(&context);
  ASSERT_TRUE(stream->Write(messages.Header()));
  bool alive = true;
  int64_t most_bytes = 0;
  for (int64_t first = 0; alive && first < messages.rows(); first += 1 << 13) {
    alive = stream->Write(messages.Rows(first, 1 << 13, false));
    most_bytes = std::max(most_bytes, cpu_->executor.memory_usage().used_bytes);
  }
  EXPECT_FALSE(alive);
  // The status comes behind what had arrived before.
  norm::v1::StreamResponse response;
  while (stream->Read(&response)) EXPECT_TRUE(response.has_rows());
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // The window, and slabs of a quarter more than asked.
  EXPECT_LE(most_bytes, int64_t{8} << 20);
  ExpectNothingLeft();
  OpenStream other(*stub_);
  ExpectOthersUnharmed(other);
}

TEST_F(ChunkedFaultsTest, ResetInTheMiddleOfRows) {
  Start();
  NormalizeRequest large = CanaryRequest();
  *large.mutable_x() = Zeros({1 << 14, 128});  // 8 MiB
  *large.mutable_weight() = Zeros({128});
  const ChunkedMessages messages(kId, large);
  for (int round = 0; round < 20; ++round) {
    grpc::ClientContext context;
    const auto stream = stub_->NormalizeStream(&context);
    std::thread writer([&] {
      stream->Write(messages.Header());
      for (int64_t first = 0; first < messages.rows(); first += 1 << 12) {
        if (!stream->Write(messages.Rows(first, 1 << 12, false))) break;
      }
    });
    // In the first, a later, or no message, depending on how the two threads run.
    if (round % 2 == 1) {
      norm::v1::StreamResponse response;
      stream->Read(&response);
    }
    context.TryCancel();
    writer.join();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  ExpectNothingLeft();
  OpenStream other(*stub_);
  ExpectOthersUnharmed(other);
}

// A stream whose last event is being handled while the server stops: neither may use what the other
// has deleted.
TEST_F(ChunkedFaultsTest, StreamsBreakWhileTheServerStops) {
  for (int round = 0; round < 40; ++round) {
    Start();
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::ClientReaderWriter<StreamRequest, norm::v1::StreamResponse>>>
        streams;
    for (int i = 0; i < 16; ++i) {
      contexts.push_back(std::make_unique<grpc::ClientContext>());
      streams.push_back(stub_->NormalizeStream(contexts.back().get()));
      ASSERT_TRUE(streams.back()->Write(Cut().Header()));
      ASSERT_TRUE(streams.back()->Write(Cut().Rows(0, 2, false)));
      norm::v1::StreamResponse response;
      ASSERT_TRUE(streams.back()->Read(&response));
    }
    for (const auto& context : contexts) context->TryCancel();
    cpu_.reset();
    for (const auto& stream : streams) EXPECT_FALSE(stream->Finish().ok());
  }
}

}  // namespace
}  // namespace norm::server
