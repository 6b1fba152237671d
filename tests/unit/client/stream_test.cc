#include "norm/client/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "norm/client/client.h"
#include "tests/unit/client/fake_server.h"

namespace norm::client {
namespace {

using ::testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(30);
using ServerStream = grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>;

v1::StreamResponse Echo(const v1::StreamRequest& request) {
  v1::StreamResponse response;
  response.set_id(request.id());
  if (request.has_forward()) {
    *response.mutable_forward()->mutable_y() = request.forward().x();
  } else {
    *response.mutable_backward()->mutable_dx() = request.backward().dy();
  }
  return response;
}

grpc::Status EchoAll(grpc::ServerContext&, ServerStream& stream) {
  v1::StreamRequest request;
  while (stream.Read(&request)) stream.Write(Echo(request));
  return grpc::Status::OK;
}

/// Reads and never answers, until the client goes.
grpc::Status NeverAnswer(grpc::ServerContext&, ServerStream& stream) {
  v1::StreamRequest request;
  while (stream.Read(&request)) {
  }
  return grpc::Status::OK;
}

class NormalizeStreamTest : public ::testing::Test {
 protected:
  NormalizeStreamTest() : client_(*Client::Create(server_.address())) {
    server_.on_stream = EchoAll;
  }

  static Tensor Filled(float value, int64_t count = 4) {
    Tensor tensor = *Tensor::Allocate(DType::kF32, {1, count});
    for (int64_t i = 0; i < count; ++i)
      reinterpret_cast<float*>(tensor.mutable_bytes().data())[i] = value;
    return tensor;
  }
  static RmsNormRequest Request(float value, int64_t count = 4) {
    return {.x = Filled(value, count).view()};
  }
  static float First(const ResultTensor& tensor) {
    return (*tensor.ToTensor()->Values<float>())[0];
  }

  FakeServer server_;
  std::unique_ptr<Client> client_;
};

TEST_F(NormalizeStreamTest, PairsEachOfManyResultsWithItsRequest) {
  // Answers in reverse order, eight at a time.
  server_.on_stream = [](grpc::ServerContext&, ServerStream& stream) {
    std::vector<v1::StreamRequest> waiting;
    v1::StreamRequest request;
    const auto flush = [&] {
      for (auto it = waiting.rbegin(); it != waiting.rend(); ++it) stream.Write(Echo(*it));
      waiting.clear();
    };
    while (stream.Read(&request)) {
      waiting.push_back(request);
      if (waiting.size() == 8) flush();
    }
    flush();
    return grpc::Status::OK;
  };
  const std::unique_ptr<NormalizeStream> stream = client_->OpenStream();
  std::vector<std::future<absl::StatusOr<ForwardResult>>> forward;
  std::vector<std::future<absl::StatusOr<BackwardResult>>> backward;
  for (int i = 0; i < 500; ++i) {
    forward.push_back(
        stream->Normalize(Request(static_cast<float>(i), i % 2 == 0 ? 4 : 5000), kTimeout));
    const Tensor dy = Filled(static_cast<float>(-i));
    backward.push_back(stream->NormalizeBackward(
        RmsNormBackwardRequest{.dy = dy.view(), .x = dy.view()}, kTimeout));
  }
  EXPECT_TRUE(stream->status().ok());
  EXPECT_TRUE(stream->Finish(kTimeout).ok());
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kUnavailable);
  for (int i = 0; i < 500; ++i) {
    absl::StatusOr<ForwardResult> y = forward[static_cast<size_t>(i)].get();
    ASSERT_TRUE(y.ok()) << y.status();
    EXPECT_EQ(First(y->y), static_cast<float>(i));
    EXPECT_EQ(First(backward[static_cast<size_t>(i)].get()->dx), static_cast<float>(-i));
  }
  EXPECT_EQ(stream->in_flight(), 0);
}

TEST_F(NormalizeStreamTest, WithoutAThreadEveryRequestIsToldSo) {
  pthread_attr_t usual;
  pthread_attr_t endless;  // stacks larger than the address space
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&endless), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&endless, size_t{1} << 48), 0);
  ASSERT_EQ(pthread_setattr_default_np(&endless), 0);
  const std::unique_ptr<NormalizeStream> stream = client_->OpenStream();
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  pthread_attr_destroy(&endless);
  pthread_attr_destroy(&usual);

  const absl::Status status = stream->status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              StartsWith("the stream has ended: no thread can be started for it: "));
  EXPECT_EQ(stream->Normalize(Request(1), kTimeout).get().status(), status);
  EXPECT_EQ(stream->in_flight(), 0);
  EXPECT_EQ(stream->Finish(kTimeout).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(NormalizeStreamTest, KeepsTheStreamOpenAfterARequestsError) {
  server_.on_stream = [](grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    while (stream.Read(&request)) {
      v1::StreamResponse response = Echo(request);
      if (request.forward().rms_norm().eps() < 0) {
        response.clear_forward();
        response.mutable_status()->set_code(3);
        response.mutable_status()->set_message("eps -1 < 0");
      }
      stream.Write(response);
    }
    return grpc::Status::OK;
  };
  const std::unique_ptr<NormalizeStream> stream = client_->OpenStream();
  RmsNormRequest bad = Request(1);
  bad.eps = -1;
  EXPECT_EQ(stream->Normalize(bad, kTimeout).get().status(),
            absl::InvalidArgumentError("eps -1 < 0"));
  EXPECT_EQ(First(stream->Normalize(Request(2), kTimeout).get()->y), 2.0f);
  EXPECT_TRUE(stream->Finish(kTimeout).ok());
}

TEST_F(NormalizeStreamTest, EndsARequestAtItsDeadlineWhenTheServerIsSilent) {
  server_.on_stream = NeverAnswer;
  const std::unique_ptr<NormalizeStream> stream = client_->OpenStream();
  auto slow = stream->Normalize(Request(1), kTimeout);
  auto fast = stream->Normalize(Request(2), absl::Milliseconds(50));
  EXPECT_EQ(fast.get().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(stream->in_flight(), 1);
}

TEST_F(NormalizeStreamTest, CompletesEverythingOnceWhenTheStreamBreaks) {
  server_.on_stream = [](grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    for (int i = 0; i < 3 && stream.Read(&request); ++i) stream.Write(Echo(request));
    return grpc::Status(grpc::StatusCode::INTERNAL, "device lost");
  };
  const std::unique_ptr<NormalizeStream> stream = client_->OpenStream();
  std::vector<std::future<absl::StatusOr<ForwardResult>>> results;
  for (int i = 0; i < 20; ++i)
    results.push_back(stream->Normalize(Request(static_cast<float>(i)), kTimeout));
  int answered = 0;
  for (auto& result : results)
    answered += result.get().ok() ? 1 : 0;  // a second completion would throw in the promise
  EXPECT_LE(answered, 3);
  EXPECT_EQ(stream->Finish(kTimeout), absl::InternalError("device lost"));
  EXPECT_EQ(stream->Normalize(Request(1), kTimeout).get().status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(NormalizeStreamTest, CallsItUnavailableWhenTheServerCutsTheStreamOff) {
  server_.on_stream = [](grpc::ServerContext& context, ServerStream& stream) {
    v1::StreamRequest request;
    for (int i = 0; i < 5; ++i) stream.Read(&request);
    context.TryCancel();
    return grpc::Status::CANCELLED;
  };
  const std::unique_ptr<NormalizeStream> stream = client_->OpenStream();
  std::vector<std::future<absl::StatusOr<ForwardResult>>> results;
  for (int i = 0; i < 5; ++i) results.push_back(stream->Normalize(Request(1), kTimeout));
  for (auto& result : results)
    EXPECT_EQ(result.get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->Finish(kTimeout).code(), absl::StatusCode::kUnavailable);
}

TEST_F(NormalizeStreamTest, CancelsWhatIsInFlightOnDestruction) {
  server_.on_stream = NeverAnswer;
  std::unique_ptr<NormalizeStream> stream = client_->OpenStream();
  std::vector<std::future<absl::StatusOr<ForwardResult>>> results;
  for (int i = 0; i < 10; ++i) results.push_back(stream->Normalize(Request(1), kTimeout));
  stream.reset();
  for (auto& result : results)
    EXPECT_EQ(result.get().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(NormalizeStreamTest, RefusesRequestsAfterFinish) {
  const std::unique_ptr<NormalizeStream> stream = client_->OpenStream();
  EXPECT_TRUE(stream->Finish(kTimeout).ok());
  EXPECT_FALSE(stream->Normalize(Request(1), kTimeout).get().ok());
}

TEST_F(NormalizeStreamTest, FinishEndsAtItsTimeout) {
  // Goes on after the client's half-close, as a server that hangs would.
  server_.on_stream = [](grpc::ServerContext& context, ServerStream& stream) {
    NeverAnswer(context, stream);
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  const std::unique_ptr<NormalizeStream> stream = client_->OpenStream();
  auto pending = stream->Normalize(Request(1), kTimeout);
  EXPECT_EQ(stream->Finish(absl::Milliseconds(50)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(pending.get().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(NormalizeStreamTest, LetsCallbacksSubmitMore) {
  const std::unique_ptr<NormalizeStream> stream = client_->OpenStream({.max_unsent_bytes = 1});
  std::promise<float> last;
  std::function<void(absl::StatusOr<ForwardResult>)> next =
      [&](absl::StatusOr<ForwardResult> result) {
        const float value = First(result->y);
        if (value == 20.0f) return last.set_value(value);
        stream->Normalize(Request(value + 1), kTimeout, next);
      };
  stream->Normalize(Request(1), kTimeout, next);
  EXPECT_EQ(last.get_future().get(), 20.0f);
  EXPECT_TRUE(stream->Finish(kTimeout).ok());
}

TEST_F(NormalizeStreamTest, ServesSeveralSubmittingThreads) {
  const std::unique_ptr<NormalizeStream> stream = client_->OpenStream({.max_unsent_bytes = 4096});
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const auto value = static_cast<float>(t * 1000 + i);
        absl::StatusOr<ForwardResult> result =
            stream->Normalize(Request(value, 300), kTimeout).get();
        right += result.ok() && First(result->y) == value ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right.load(), 400);
}

TEST_F(NormalizeStreamTest, FailsEverythingWhenNoServerListens) {
  const std::string address = server_.address();
  server_.Stop();
  const std::unique_ptr<Client> client = *Client::Create(address);
  const std::unique_ptr<NormalizeStream> stream = client->OpenStream();
  const absl::Status status = stream->Normalize(Request(1), kTimeout).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(IsServerUnreachable(stream->Finish(kTimeout)));
}

TEST_F(NormalizeStreamTest, ARequestThatAnEndingStreamStillTakesCompletes) {
  server_.on_stream = [](grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    stream.Read(&request);
    return grpc::Status::OK;  // no answer
  };
  const std::unique_ptr<NormalizeStream> stream = client_->OpenStream();
  std::promise<absl::Status> second;
  stream->Normalize(Request(1), kTimeout, [&](const absl::StatusOr<ForwardResult>& first) {
    EXPECT_EQ(first.status().code(), absl::StatusCode::kUnavailable);
    // The stream is just telling its requests that it has ended.
    stream->Normalize(Request(2), kTimeout, [&](const absl::StatusOr<ForwardResult>& result) {
      second.set_value(result.status());
    });
  });
  std::future<absl::Status> completed = second.get_future();
  ASSERT_EQ(completed.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(completed.get().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace norm::client
