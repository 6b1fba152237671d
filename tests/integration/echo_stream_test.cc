// EchoStream between the client and a real server.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "norm/client/client.h"
#include "tests/support/cpu_server.h"

namespace norm::server {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

class EchoStreamTest : public testing::Test {
 protected:
  static client::EncodedRequest Message(int64_t rows) {
    const client::Tensor x = *client::Tensor::Allocate(DType::kF32, {rows, 1024});
    return *client::EncodedRequest::Of(client::RmsNormRequest{.x = x.view()});
  }

  norm::test::CpuServer cpu_;
  const std::unique_ptr<client::Client> client_ = *client::Client::Create(cpu_.server.address());
  const std::unique_ptr<client::EchoStream> stream_ = client_->OpenEchoStream();
};

TEST_F(EchoStreamTest, SendsBackAsManyBytesAsAreAskedFor) {
  const client::EncodedRequest message = Message(600);
  for (const int64_t size : {message.size_bytes(), message.size_bytes() + 1024, int64_t{70'000},
                             int64_t{1}, int64_t{0}}) {
    EXPECT_EQ(stream_->Echo(message, size, kTimeout), absl::OkStatus()) << size;
  }
  EXPECT_EQ(stream_->Echo(client::EncodedRequest(), 0, kTimeout), absl::OkStatus());
}

TEST_F(EchoStreamTest, GivesEachOfSeveralThreadsItsOwn) {
  std::vector<std::thread> threads;
  for (int64_t rows = 1; rows <= 8; ++rows) {
    threads.emplace_back([this, rows] {
      const client::EncodedRequest message = Message(rows);
      for (int i = 0; i < 50; ++i)
        EXPECT_EQ(stream_->Echo(message, message.size_bytes(), kTimeout), absl::OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(EchoStreamTest, ASizeFarBeyondTheMessageEndsTheStream) {
  const client::EncodedRequest message = Message(1);
  EXPECT_EQ(stream_->Echo(message, message.size_bytes() + 1025, kTimeout).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream_->Echo(message, message.size_bytes(), kTimeout).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(EchoStreamTest, AServerThatStopsEndsIt) {
  const client::EncodedRequest message = Message(1);
  ASSERT_EQ(stream_->Echo(message, message.size_bytes(), kTimeout), absl::OkStatus());
  EXPECT_EQ(cpu_.server.server().Drain(), absl::OkStatus());
  EXPECT_EQ(stream_->Echo(message, message.size_bytes(), kTimeout).code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace norm::server
