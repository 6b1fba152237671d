// Chunked requests that break the rules: each ends with the right code, once, and nothing else on
// the stream notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "tests/integration/await.h"
#include "tests/integration/chunked_stream.h"
#include "tests/support/cpu_server.h"
#include "tests/support/request_builder.h"

namespace norm::server {
namespace {

using norm::test::Await;
using norm::test::CanaryRequest;
using norm::test::ChunkedMessages;
using norm::test::ChunkedResult;
using norm::test::CpuServer;
using norm::test::InProcessServerOptions;
using norm::test::OpenStream;
using norm::test::SameBits;
using norm::test::Zeros;
using norm::v1::NormalizationService;
using norm::v1::NormalizeRequest;
using norm::v1::NormalizeResponse;
using norm::v1::StreamRequest;
using ::testing::HasSubstr;

constexpr uint64_t kId = 7;
constexpr uint64_t kCanaryId = 1000;

/// x and residual [8, 4].
NormalizeRequest EightRows() {
  NormalizeRequest request = CanaryRequest();
  *request.mutable_x() = Zeros({8, 4});
  *request.mutable_residual() = Zeros({8, 4});
  return request;
}

StreamRequest Cancel(uint64_t id) {
  StreamRequest message;
  message.set_id(id);
  message.mutable_cancel();
  return message;
}

class ChunkedViolationsTest : public ::testing::Test {
 protected:
  void Start(const InProcessServerOptions& options = {}) {
    cpu_ = std::make_unique<CpuServer>(options);
    stub_ = NormalizationService::NewStub(cpu_->server.Connect());
  }

  /// A whole request and a chunked one are served beside whatever else is on the stream.
  void ExpectOthersUnharmed(OpenStream& stream) {
    NormalizeResponse alone;
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Normalize(&context, EightRows(), &alone).ok());
    StreamRequest whole;
    whole.set_id(kCanaryId);
    *whole.mutable_forward() = EightRows();
    stream.Write(whole);
    for (const StreamRequest& message : ChunkedMessages(kCanaryId + 1, EightRows()).All(3)) {
      stream.Write(message);
    }
    const ChunkedResult answer = stream.AwaitFinal(kCanaryId);
    EXPECT_EQ(answer.final.forward().y().data(), alone.y().data());
    EXPECT_TRUE(SameBits(alone, stream.AwaitFinal(kCanaryId + 1)));
    stream.Forget(kCanaryId);
    stream.Forget(kCanaryId + 1);
  }

  void ExpectNothingLeft() {
    EXPECT_TRUE(Await([&] {
      const SchedulerLoad load = cpu_->server.scheduler().Load();
      return load.in_flight_requests == 0 && load.queued_requests == 0 &&
             load.in_flight_bytes == 0 && cpu_->executor.memory_usage().used_bytes == 0;
    }));
  }

  static void ExpectError(const ChunkedResult& result, grpc::StatusCode code,
                          const std::string& message) {
    EXPECT_EQ(result.final.status().code(), code) << result.final.status().message();
    EXPECT_THAT(result.final.status().message(), HasSubstr(message));
    EXPECT_FALSE(result.final.has_forward());
  }

  std::unique_ptr<CpuServer> cpu_;
  std::unique_ptr<NormalizationService::Stub> stub_;
};

struct Violation {
  const char* name;
  std::function<std::vector<StreamRequest>()> messages;
  const char* message;
  bool closes = false;  // the upload too, being marked as the last
};

ChunkedMessages Cut() { return ChunkedMessages(kId, EightRows()); }

/// Rows [0, 2) changed.
std::vector<StreamRequest> Changed(const std::function<void(norm::v1::InputRows*)>& change) {
  StreamRequest rows = Cut().Rows(0, 2, false);
  change(rows.mutable_rows());
  return {Cut().Header(), rows};
}

const Violation kViolations[] = {
    {"OutOfOrder",
     [] {
       return std::vector{Cut().Header(), Cut().Rows(2, 2, false)};
     },
     "rows.first_row 2 != 0, the number of rows sent before"},
    {"Repeated",
     [] {
       return std::vector{Cut().Header(), Cut().Rows(0, 2, false), Cut().Rows(0, 2, false)};
     },
     "rows.first_row 0 != 2"},
    {"Overlapping",
     [] {
       return std::vector{Cut().Header(), Cut().Rows(0, 2, false), Cut().Rows(1, 2, false)};
     },
     "rows.first_row 1 != 2"},
    {"Missing",
     [] {
       return std::vector{Cut().Header(), Cut().Rows(0, 2, false), Cut().Rows(3, 2, false)};
     },
     "rows.first_row 3 != 2"},
    {"NegativeFirstRow",
     [] { return Changed([](norm::v1::InputRows* rows) { rows->set_first_row(-2); }); },
     "rows.first_row -2 != 0"},
    {"LastTooEarly",
     [] {
       return std::vector{Cut().Header(), Cut().Rows(0, 5, true)};
     },
     "rows.last comes after 5 rows, but x has 8", /*closes=*/true},
    {"TooLong",
     [] {
       NormalizeRequest more = EightRows();
       *more.mutable_x() = Zeros({9, 4});
       *more.mutable_residual() = Zeros({9, 4});
       return std::vector{Cut().Header(), ChunkedMessages(kId, more).Rows(0, 9, false)};
     },
     "rows are 9 from 0 on, but x has 8 rows"},
    {"PartOfARow",
     [] { return Changed([](norm::v1::InputRows* rows) { rows->mutable_x()->pop_back(); }); },
     "rows.x has 31 bytes, must be a multiple of 16, the size of a row"},
    {"UnequalRows",
     [] {
       return Changed([](norm::v1::InputRows* rows) { rows->mutable_residual()->resize(16); });
     },
     "rows.residual has 1 rows != 2 rows of x"},
    {"AbsentTensor",
     [] { return Changed([](norm::v1::InputRows* rows) { rows->clear_residual(); }); },
     "rows.residual has 0 rows != 2 rows of x"},
    {"TensorThatTheHeaderLacks",
     [] { return Changed([](norm::v1::InputRows* rows) { rows->set_dy("0123456789abcdef"); }); },
     "rows.dy is not allowed"},
    {"NoRowsAndNotLast",
     [] {
       return std::vector{Cut().Header(), Cut().Rows(0, 0, false)};
     },
     "rows are none, and not the last"},
    {"HeaderWithData",
     [] {
       StreamRequest header = Cut().Header();
       *header.mutable_forward()->mutable_x() = Zeros({8, 4});
       return std::vector{header};
     },
     "x.data has 128 bytes, must be empty"},
    {"HeaderWithABadOption",
     [] {
       StreamRequest header = Cut().Header();
       header.mutable_forward()->mutable_rms_norm()->set_eps(-1);
       return std::vector{header};
     },
     "rms_norm.eps -1"},
    {"HeaderOfMoreThanExists",
     [] {
       StreamRequest header = Cut().Header();
       header.mutable_forward()->mutable_x()->set_shape(0, int64_t{1} << 53);
       header.mutable_forward()->mutable_residual()->set_shape(0, int64_t{1} << 53);
       return std::vector{header};
     },
     "has more than 2^56 bytes"},
    {"HeaderWithoutRequest",
     [] {
       StreamRequest header;
       header.set_id(kId);
       header.set_chunked(true);
       return std::vector{header};
     },
     "chunked is set, but the message is no header"},
    {"RowsMarkedAsHeader",
     [] {
       StreamRequest rows = Cut().Rows(0, 2, false);
       rows.set_chunked(true);
       return std::vector{rows};
     },
     "chunked is set, but the message is no header"},
    {"SecondHeader",
     [] {
       return std::vector{Cut().Header(), Cut().Rows(0, 2, false), Cut().Header()};
     },
     "id 7 is that of a chunked request in flight"},
    {"WholeRequestUnderItsId",
     [] {
       StreamRequest whole;
       whole.set_id(kId);
       *whole.mutable_forward() = CanaryRequest();
       return std::vector{Cut().Header(), whole};
     },
     "id 7 is that of a chunked request in flight"},
};

class ChunkedViolationTest : public ChunkedViolationsTest,
                             public ::testing::WithParamInterface<Violation> {};

TEST_P(ChunkedViolationTest, EndsTheRequestOnceAndNothingElse) {
  Start();
  OpenStream stream(*stub_);
  for (const StreamRequest& message : GetParam().messages()) stream.Write(message);
  ExpectError(stream.AwaitFinal(kId), grpc::StatusCode::INVALID_ARGUMENT, GetParam().message);
  // What the client had on its way is dropped without a word, until the upload is closed.
  if (!GetParam().closes) stream.Write(Cut().Rows(4, 4, false));
  ExpectOthersUnharmed(stream);
  EXPECT_EQ(stream.finals(kId), 1);
  stream.Write(Cancel(kId));
  stream.Forget(kId);
  for (const StreamRequest& message : Cut().All(3)) stream.Write(message);
  EXPECT_EQ(stream.AwaitFinal(kId).final.status().code(), 0);
  EXPECT_TRUE(stream.Finish().ok());
  ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Rules, ChunkedViolationTest, ::testing::ValuesIn(kViolations),
                         [](const auto& param_info) { return param_info.param.name; });

TEST_F(ChunkedViolationsTest, RowsOfUnknownAndFinishedIdsAreRefusedUnderThem) {
  Start();
  OpenStream stream(*stub_);
  stream.Write(Cut().Rows(0, 2, false));
  ExpectError(stream.AwaitFinal(kId), grpc::StatusCode::INVALID_ARGUMENT,
              "id 7 has no chunked request in flight");
  stream.Forget(kId);
  for (const StreamRequest& message : Cut().All(8)) stream.Write(message);
  EXPECT_EQ(stream.AwaitFinal(kId).final.status().code(), 0);
  stream.Forget(kId);
  stream.Write(Cut().Rows(0, 2, false));
  ExpectError(stream.AwaitFinal(kId), grpc::StatusCode::INVALID_ARGUMENT,
              "id 7 has no chunked request in flight");
  // Cancelling what is not there is no error.
  stream.Write(Cancel(kId + 1));
  ExpectOthersUnharmed(stream);
  EXPECT_EQ(stream.finals(kId + 1), 0);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ChunkedViolationsTest, TheLastRowsCloseAnUploadThatEndedEarly) {
  Start();
  OpenStream stream(*stub_);
  stream.Write(Cut().Header());
  stream.Write(Cut().Rows(1, 1, false));
  ExpectError(stream.AwaitFinal(kId), grpc::StatusCode::INVALID_ARGUMENT, "first_row");
  // Still open: its id is not free, and that is not said twice.
  stream.Write(Cut().Header());
  stream.Write(Cut().Rows(7, 1, true));
  ExpectOthersUnharmed(stream);
  EXPECT_EQ(stream.finals(kId), 1);
  stream.Forget(kId);
  for (const StreamRequest& message : Cut().All(8)) stream.Write(message);
  EXPECT_EQ(stream.AwaitFinal(kId).final.status().code(), 0);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ChunkedViolationsTest, HalfCloseBeforeTheLastRowEndsTheRequest) {
  Start();
  OpenStream stream(*stub_);
  stream.Write(Cut().Header());
  stream.Write(Cut().Rows(0, 3, false));
  EXPECT_TRUE(stream.Finish().ok());
  ExpectError(stream.AwaitFinal(kId), grpc::StatusCode::INVALID_ARGUMENT,
              "rows ended with the stream after 3 of 8 rows");
  ExpectNothingLeft();
}

TEST_F(ChunkedViolationsTest, TenThousandOpenIds) {
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

TEST_F(ChunkedViolationsTest, DeadlineThatPassesDuringTheUpload) {
  Start();
  OpenStream stream(*stub_);
  StreamRequest header = Cut().Header();
  header.set_timeout_us(20'000);
  stream.Write(header);
  stream.Write(Cut().Rows(0, 3, false));
  ExpectError(stream.AwaitFinal(kId), grpc::StatusCode::DEADLINE_EXCEEDED, "deadline passed with ");
  ExpectOthersUnharmed(stream);
  ExpectNothingLeft();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ChunkedViolationsTest, HalfATensorAndThenSilence) {
  InProcessServerOptions options;
  options.grpc.stream_stall_timeout = absl::Milliseconds(50);
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
                "no rows came for 50ms after 4 of 8");
  }
  ExpectNothingLeft();
  ExpectOthersUnharmed(stream);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ChunkedViolationsTest, ClientThatNeverReadsLosesItsStream) {
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

TEST_F(ChunkedViolationsTest, ResetInTheMiddleOfRows) {
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

}  // namespace
}  // namespace norm::server
