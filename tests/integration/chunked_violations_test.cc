// Chunked requests that break the rules: each ends with the right code, once, and nothing else on
// the stream notices.
#include <functional>
#include <string>
#include <vector>

#include "tests/integration/chunked_fixture.h"

namespace norm::server {
namespace {

using ChunkedViolationsTest = ChunkedFixture;

struct Violation {
  const char* name;
  std::function<std::vector<StreamRequest>()> messages;
  const char* message;
  bool closes = false;  // the upload too, being marked as the last
};

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

}  // namespace
}  // namespace norm::server
