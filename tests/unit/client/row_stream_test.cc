// Requests in rows against a server whose answers a test writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "norm/client/client.h"
#include "tests/unit/client/fake_server.h"

namespace norm::client {
namespace {

using ::testing::HasSubstr;
using ServerStream = grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>;

constexpr absl::Duration kTimeout = absl::Seconds(30);

v1::StreamResponse Rows(uint64_t id, int64_t first_row, const std::string& y) {
  v1::StreamResponse response;
  response.set_id(id);
  response.mutable_rows()->set_first_row(first_row);
  response.mutable_rows()->set_y(y);
  return response;
}

v1::StreamResponse Final(uint64_t id) {
  v1::StreamResponse response;
  response.set_id(id);
  response.mutable_forward()->mutable_timing()->set_device("fake");
  return response;
}

v1::StreamResponse Error(uint64_t id, int code, const std::string& message) {
  v1::StreamResponse response;
  response.set_id(id);
  response.mutable_status()->set_code(code);
  response.mutable_status()->set_message(message);
  return response;
}

/// y = x, row messages as they come.
grpc::Status EchoRows(grpc::ServerContext&, ServerStream& stream) {
  v1::StreamRequest request;
  while (stream.Read(&request)) {
    if (!request.has_rows()) continue;
    stream.Write(Rows(request.id(), request.rows().first_row(), request.rows().x()));
    if (request.rows().last()) stream.Write(Final(request.id()));
  }
  return grpc::Status::OK;
}

class RowStreamTest : public ::testing::Test {
 protected:
  RowStreamTest() { server_.on_stream = EchoRows; }

  /// x [8, 4] f32: 16 bytes a row, two rows a message, four rows a window.
  std::unique_ptr<Client> Connect() {
    ClientOptions options;
    options.chunks = {.above_bytes = 64, .chunk_bytes = 32, .window_bytes = 64};
    return *Client::Create(server_.address(), options);
  }
  static Tensor EightRows() {
    Tensor tensor = *Tensor::Allocate(DType::kF32, {8, 4});
    for (int64_t i = 0; i < 32; ++i)
      reinterpret_cast<float*>(tensor.mutable_bytes().data())[i] = static_cast<float>(i);
    return tensor;
  }
  static std::string Bytes(const Tensor& tensor) {
    return {reinterpret_cast<const char*>(tensor.bytes().data()), tensor.bytes().size()};
  }

  static std::string Bytes(const ResultTensor& tensor) { return Bytes(*tensor.ToTensor()); }

  /// What a call gets from a server that answers the header with these responses.
  absl::Status StatusAfter(const std::vector<v1::StreamResponse>& responses) {
    server_.on_stream = [&](grpc::ServerContext&, ServerStream& stream) {
      v1::StreamRequest request;
      while (stream.Read(&request)) {
        if (!request.chunked()) continue;
        for (v1::StreamResponse response : responses) {
          response.set_id(request.id());
          stream.Write(response);
        }
      }
      return grpc::Status::OK;
    };
    return Connect()->RmsNorm({.x = x_.view()}, kTimeout).status();
  }

  const Tensor x_ = EightRows();
  FakeServer server_;
};

TEST_F(RowStreamTest, LargeTensorsGoInRowsAndSmallOnesInOneMessage) {
  std::vector<v1::StreamRequest> seen;
  server_.on_stream = [&](grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    while (stream.Read(&request)) {
      seen.push_back(request);
      if (!request.has_rows()) continue;
      stream.Write(Rows(request.id(), request.rows().first_row(), request.rows().x()));
      if (request.rows().last()) stream.Write(Final(request.id()));
    }
    return grpc::Status::OK;
  };
  int whole = 0;
  server_.on_forward = [&](grpc::ServerContext&, const v1::NormalizeRequest& request,
                           v1::NormalizeResponse& response) {
    ++whole;
    *response.mutable_y() = request.x();
    return grpc::Status::OK;
  };
  const std::unique_ptr<Client> client = Connect();
  const Tensor weight = *Tensor::CopyOf(TensorView::Of(std::vector<float>{1, 2, 3, 4}, {4}));
  const absl::StatusOr<ForwardResult> result =
      client->RmsNorm({.x = x_.view(), .weight = weight.view(), .eps = 0.25}, kTimeout);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(Bytes(result->y), Bytes(x_));
  EXPECT_EQ(result->y.shape(), x_.shape());
  EXPECT_EQ(result->timing.device, "fake");
  ASSERT_EQ(seen.size(), 5U);
  EXPECT_TRUE(seen[0].chunked());
  EXPECT_GT(seen[0].timeout_us(), 0U);
  EXPECT_EQ(seen[0].forward().rms_norm().eps(), 0.25);
  EXPECT_EQ(seen[0].forward().x().data(), "");
  EXPECT_EQ(seen[0].forward().x().shape(0), 8);
  EXPECT_EQ(seen[0].forward().weight().data(), Bytes(weight));
  for (size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(seen[i].rows().first_row(), 2 * (static_cast<int64_t>(i) - 1));
    EXPECT_EQ(seen[i].rows().x(), Bytes(x_).substr(32 * (i - 1), 32));
    EXPECT_EQ(seen[i].rows().last(), i == 4);
  }
  EXPECT_EQ(whole, 0);
  const std::vector<float> four(16, 1.0F);  // 64 bytes: not above
  EXPECT_TRUE(client->RmsNorm({.x = TensorView::Of(four, {4, 4})}, kTimeout).ok());
  EXPECT_EQ(whole, 1);
}

TEST_F(RowStreamTest, RefusesChunksThatAreNone) {
  for (const ChunkOptions& chunks :
       {ChunkOptions{.above_bytes = -1}, ChunkOptions{.chunk_bytes = 0},
        ChunkOptions{.window_bytes = 0}}) {
    EXPECT_EQ(Client::Create(server_.address(), {.chunks = chunks}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(RowStreamTest, NeverMoreThanTheWindowIsOnItsWay) {
  std::atomic<int64_t> returned{0};
  int64_t most = 0;
  server_.on_stream = [&](grpc::ServerContext&, ServerStream& stream) {
    // Answers only when the client has nothing more to say: four rows came, or the end.
    std::vector<v1::StreamRequest> held;
    v1::StreamRequest request;
    while (stream.Read(&request)) {
      if (!request.has_rows()) continue;
      held.push_back(request);
      const int64_t rows_in = request.rows().first_row() + 2;
      most = std::max(most, rows_in - returned);
      if (rows_in - returned < 4 && !request.rows().last()) continue;
      for (const v1::StreamRequest& one : held) {
        returned += 2;
        stream.Write(Rows(one.id(), one.rows().first_row(), one.rows().x()));
      }
      if (request.rows().last()) stream.Write(Final(request.id()));
      held.clear();
    }
    return grpc::Status::OK;
  };
  EXPECT_TRUE(Connect()->RmsNorm({.x = x_.view()}, kTimeout).ok());
  EXPECT_EQ(most, 4);
}

TEST_F(RowStreamTest, ResultsThatBreakTheContractAreInternalErrors) {
  const std::string row(16, 'r');
  const struct {
    std::vector<v1::StreamResponse> responses;
    const char* message;
  } cases[] = {
      {{Rows(0, 1, row)}, "the server sent rows from 1 on, not from 0"},
      {{Rows(0, 0, row), Rows(0, 0, row)}, "the server sent rows from 0 on, not from 1"},
      {{Rows(0, 0, std::string(15, 'r'))}, "the server sent 15 bytes of y, of rows of 16"},
      {{Rows(0, 0, "")}, "the server sent 0 bytes of y, of rows of 16"},
      {{Rows(0, 0, std::string(9 * 16, 'r'))}, "the server sent 144 bytes of y, of rows of 16"},
      {{Rows(0, 0, row), Final(0)}, "the server ended with 1 of 8 rows"},
      {{Final(0)}, "the server ended with 0 of 8 rows"},
  };
  for (const auto& one : cases) {
    const absl::Status status = StatusAfter(one.responses);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << one.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.message));
  }
}

TEST_F(RowStreamTest, RowsForAWholeRequestAreAnInternalError) {
  server_.on_stream = [](grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    while (stream.Read(&request)) stream.Write(Rows(request.id(), 0, "rows"));
    return grpc::Status::OK;
  };
  const std::unique_ptr<NormalizeStream> stream = Connect()->OpenStream();
  EXPECT_EQ(stream->Normalize(RmsNormRequest{.x = x_.view()}, kTimeout).get().status().code(),
            absl::StatusCode::kInternal);
}

/// Answers every header with an error after the first rows; ends each upload as the contract says
/// and counts what came late.
struct RefusingServer {
  std::atomic<int> cancels{0};
  std::atomic<int> rows_after_cancel{0};

  grpc::Status operator()(grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    bool open = false;
    while (stream.Read(&request)) {
      if (request.chunked()) {
        open = true;
        stream.Write(Error(request.id(), 3, "no such thing"));
      } else if (request.has_cancel()) {
        ++cancels;
        open = false;
      } else if (!open) {
        ++rows_after_cancel;
      }
    }
    return grpc::Status::OK;
  }
};

TEST_F(RowStreamTest, AnEarlyErrorClosesTheUploadAndTheStreamGoesOn) {
  RefusingServer refusing;
  server_.on_stream = std::ref(refusing);
  const std::unique_ptr<Client> client = Connect();
  const std::unique_ptr<NormalizeStream> stream = client->OpenStream(
      {.chunks = {.above_bytes = 64, .chunk_bytes = 16, .window_bytes = 16}, .max_uploads = 1});
  for (int i = 0; i < 5; ++i) {
    const absl::Status status =
        stream->Normalize(RmsNormRequest{.x = x_.view()}, kTimeout).get().status();
    EXPECT_EQ(status, absl::InvalidArgumentError("no such thing"));
  }
  EXPECT_TRUE(stream->Finish(kTimeout).ok());
  EXPECT_EQ(refusing.cancels.load(), 5);
  EXPECT_EQ(refusing.rows_after_cancel.load(), 0);
}

TEST_F(RowStreamTest, TensorsThatDoNotFitTogetherAreLeftToTheServer) {
  RefusingServer refusing;
  server_.on_stream = std::ref(refusing);
  const std::unique_ptr<Client> client = Connect();
  const Tensor other = *Tensor::Allocate(DType::kF32, {3, 4});
  EXPECT_EQ(client->RmsNorm({.x = x_.view(), .residual = other.view()}, kTimeout).status(),
            absl::InvalidArgumentError("no such thing"));
  EXPECT_EQ(client->RmsNorm({.x = x_.view(), .normalized_dims = 5}, kTimeout).status(),
            absl::InvalidArgumentError("no such thing"));
}

TEST_F(RowStreamTest, ADeadlineCallsTheUploadOff) {
  std::atomic<int> cancels{0};
  server_.on_stream = [&](grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    while (stream.Read(&request)) cancels += request.has_cancel() ? 1 : 0;
    return grpc::Status::OK;
  };
  const std::unique_ptr<Client> client = Connect();
  ASSERT_TRUE(client->GetServerInfo(kTimeout).ok());  // connected
  const std::unique_ptr<NormalizeStream> stream =
      client->OpenStream({.chunks = {.above_bytes = 64, .chunk_bytes = 32, .window_bytes = 64}});
  EXPECT_EQ(stream->Normalize(RmsNormRequest{.x = x_.view()}, absl::Milliseconds(500))
                .get()
                .status()
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(stream->Finish(kTimeout).ok());
  EXPECT_EQ(cancels.load(), 1);
}

TEST_F(RowStreamTest, UploadsBeyondTheLimitWaitForTheirTurn) {
  std::atomic<int> open{0};
  std::atomic<int> most{0};
  server_.on_stream = [&](grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    while (stream.Read(&request)) {
      if (request.chunked()) most = std::max(most.load(), ++open);
      if (!request.has_rows()) continue;
      stream.Write(Rows(request.id(), request.rows().first_row(), request.rows().x()));
      if (!request.rows().last()) continue;
      --open;
      stream.Write(Final(request.id()));
    }
    return grpc::Status::OK;
  };
  const std::unique_ptr<Client> client = Connect();
  const std::unique_ptr<NormalizeStream> stream = client->OpenStream(
      {.chunks = {.above_bytes = 64, .chunk_bytes = 32, .window_bytes = 64}, .max_uploads = 3});
  std::vector<std::future<absl::StatusOr<ForwardResult>>> results;
  for (int i = 0; i < 20; ++i) {
    results.push_back(stream->Normalize(RmsNormRequest{.x = x_.view()}, kTimeout));
  }
  for (auto& result : results) {
    const absl::StatusOr<ForwardResult> got = result.get();
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(Bytes(got->y), Bytes(x_));
  }
  EXPECT_TRUE(stream->Finish(kTimeout).ok());
  EXPECT_LE(most.load(), 3);
}

TEST_F(RowStreamTest, ADestroyedStreamCompletesItsUploads) {
  server_.on_stream = [](grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    while (stream.Read(&request)) {
    }
    return grpc::Status::OK;
  };
  const std::unique_ptr<Client> client = Connect();
  std::unique_ptr<NormalizeStream> stream =
      client->OpenStream({.chunks = {.above_bytes = 64, .chunk_bytes = 32, .window_bytes = 64}});
  auto result = stream->Normalize(RmsNormRequest{.x = x_.view()}, kTimeout);
  stream.reset();
  EXPECT_EQ(result.get().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(RowStreamTest, AnOverloadedServerIsTriedAgainAfterItsPushback) {
  std::atomic<int> tries{0};
  server_.on_stream = [&](grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    const bool refuse = ++tries == 1;
    while (stream.Read(&request)) {
      if (refuse && request.chunked()) {
        v1::StreamResponse response = Error(request.id(), 14, "full");
        auto* detail = response.mutable_status()->add_details();
        detail->set_type_url("type.googleapis.com/google.rpc.RetryInfo");
        detail->set_value(std::string("\x0a\x05\x10\x80\x9b\xee\x02", 7));  // 6 ms
        stream.Write(response);
      } else if (!refuse && request.has_rows()) {
        stream.Write(Rows(request.id(), request.rows().first_row(), request.rows().x()));
        if (request.rows().last()) stream.Write(Final(request.id()));
      }
    }
    return grpc::Status::OK;
  };
  const absl::StatusOr<ForwardResult> result = Connect()->RmsNorm({.x = x_.view()}, kTimeout);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(tries.load(), 2);
}

TEST_F(RowStreamTest, ProgressCountsWhatLeftAndWhatCameBack) {
  const auto progress = std::make_shared<TransferProgress>();
  const absl::StatusOr<ForwardResult> result = Connect()->Normalize(
      RmsNormRequest{.x = x_.view()}, kTimeout, CallOptions{.progress = progress});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(progress->total_bytes.load(), 128);
  EXPECT_EQ(progress->sent_bytes.load(), 128);
  EXPECT_EQ(progress->returned.load(), 1.0);
}

}  // namespace
}  // namespace norm::client
