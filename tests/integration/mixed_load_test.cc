// Many clients at once, unary and streams, every op and dtype: each response belongs to its
// request, is right, and has the bits that the same request has alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "prometheus/text_serializer.h"
#include "server/observability/metrics_impl.h"
#include "tests/integration/await.h"
#include "tests/integration/checked_request.h"
#include "tests/support/cpu_server.h"
#include "tests/support/request_builder.h"

namespace norm::server {
namespace {

using norm::test::Await;
using norm::test::CheckedRequest;
using norm::test::CpuServer;
using norm::test::F32Tensor;
using norm::test::F32Values;
using norm::test::InProcessServerOptions;
using norm::v1::NormalizationService;
using norm::v1::StreamRequest;
using norm::v1::StreamResponse;

StreamRequest ToStream(uint64_t id, const CheckedRequest& checked) {
  StreamRequest request;
  request.set_id(id);
  if (checked.direction() == Direction::kForward) {
    *request.mutable_forward() = checked.forward();
  } else {
    *request.mutable_backward() = checked.backward();
  }
  return request;
}

::testing::AssertionResult CheckResponse(const CheckedRequest& checked,
                                         const StreamResponse& response) {
  if (response.status().code() != 0) {
    return ::testing::AssertionFailure() << checked.label() << ": " << response.status().message();
  }
  return response.has_forward() ? checked.Check(response.forward())
                                : checked.Check(response.backward());
}

/// The tensors alone.
std::string Bits(StreamResponse response) {
  response.clear_id();
  if (response.has_forward()) response.mutable_forward()->clear_timing();
  if (response.has_backward()) response.mutable_backward()->clear_timing();
  return response.SerializeAsString();
}

TEST(MixedLoadTest, EveryResponseIsRightAndHasTheBitsItHasAlone) {
  CpuServer cpu;
  constexpr uint64_t kCases = 48;
  std::vector<CheckedRequest> cases;
  for (uint64_t seed = 0; seed < kCases; ++seed) cases.emplace_back(seed, 2000);
  std::vector<std::string> alone;
  {
    auto stub = NormalizationService::NewStub(cpu.server.Connect());
    grpc::ClientContext context;
    auto stream = stub->NormalizeStream(&context);
    for (const CheckedRequest& one : cases) {
      StreamResponse response;
      ASSERT_TRUE(stream->Write(ToStream(0, one)));
      ASSERT_TRUE(stream->Read(&response));
      EXPECT_TRUE(CheckResponse(one, response));
      alone.push_back(Bits(response));
    }
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
  std::atomic<int> right{0};
  constexpr int kClients = 8;
  constexpr int kRounds = 4;
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      auto stub = NormalizationService::NewStub(cpu.server.Connect());
      grpc::ClientContext context;
      auto stream = stub->NormalizeStream(&context);
      std::thread writer([&] {
        for (uint64_t i = 0; i < kRounds * kCases; ++i) {
          stream->Write(ToStream(i, cases[(i * 7 + static_cast<uint64_t>(client)) % kCases]));
        }
        stream->WritesDone();
      });
      StreamResponse response;
      while (stream->Read(&response)) {
        const size_t which = (response.id() * 7 + static_cast<uint64_t>(client)) % kCases;
        const ::testing::AssertionResult correct = CheckResponse(cases[which], response);
        EXPECT_TRUE(correct);
        EXPECT_EQ(Bits(response), alone[which]) << cases[which].label();
        if (correct) right.fetch_add(1);
      }
      writer.join();
      EXPECT_TRUE(stream->Finish().ok());
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right.load(), kClients * kRounds * static_cast<int>(kCases));
}

TEST(MixedLoadTest, ThousandRequestsPerStreamAreAnsweredOnceEachById) {
  InProcessServerOptions options;
  options.grpc.max_stream_requests = 32;
  CpuServer cpu(options);
  constexpr uint64_t kRequests = 1000;
  constexpr int kStreams = 4;
  const auto x_of = [](uint64_t id) {
    const auto rows = static_cast<int64_t>(id % 2 == 0 ? 1 : 64);
    std::vector<float> x(static_cast<size_t>(rows) * 16, static_cast<float>(id + 1));
    for (size_t i = 0; i < x.size(); i += 2) x[i] = -x[i] * 2;
    return F32Tensor({rows, 16}, x);
  };
  std::vector<std::thread> clients;
  for (int client = 0; client < kStreams; ++client) {
    clients.emplace_back([&] {
      auto stub = NormalizationService::NewStub(cpu.server.Connect());
      grpc::ClientContext context;
      auto stream = stub->NormalizeStream(&context);
      std::thread writer([&] {
        for (uint64_t id = 0; id < kRequests; ++id) {
          StreamRequest request;
          request.set_id(id);
          // eps = id^2 makes the result depend on the id: rstd = 1 / sqrt(2.5 (id+1)^2 + id^2).
          request.mutable_forward()->mutable_rms_norm()->set_eps(static_cast<double>(id * id));
          *request.mutable_forward()->mutable_x() = x_of(id);
          stream->Write(request);
        }
        stream->WritesDone();
      });
      std::vector<int> answers(kRequests, 0);
      StreamResponse response;
      while (stream->Read(&response)) {
        ASSERT_LT(response.id(), kRequests);
        ++answers[response.id()];
        const auto id = static_cast<double>(response.id());
        const double rstd = 1.0 / std::sqrt(2.5 * (id + 1) * (id + 1) + id * id);
        const std::vector<float> y = F32Values(response.forward().y());
        ASSERT_EQ(y.size(), response.id() % 2 == 0 ? 16U : 1024U);
        for (size_t i = 0; i < y.size(); ++i) {
          EXPECT_NEAR(y[i], (i % 2 == 0 ? -2.0 : 1.0) * (id + 1) * rstd, 5e-6);
        }
      }
      writer.join();
      EXPECT_TRUE(stream->Finish().ok());
      EXPECT_EQ(answers, std::vector<int>(kRequests, 1));
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST(MixedLoadTest, SlowReaderHoldsABoundedAmount) {
  InProcessServerOptions options;
  options.grpc.max_stream_requests = 4;
  options.grpc.max_stream_unsent_bytes = int64_t{1} << 20;
  CpuServer cpu(options);
  auto stub = NormalizationService::NewStub(cpu.server.Connect());
  grpc::ClientContext context;
  auto stream = stub->NormalizeStream(&context);
  StreamRequest request;
  request.mutable_forward()->mutable_rms_norm();
  *request.mutable_forward()->mutable_x() = norm::test::Zeros({512, 1024});  // 2 MiB
  constexpr uint64_t kRequests = 40;
  std::thread writer([&] {
    for (uint64_t id = 0; id < kRequests; ++id) {
      request.set_id(id);
      stream->Write(request);
    }
    stream->WritesDone();
  });
  // Nothing is read: sockets and windows take a few responses, then the server stops executing.
  ASSERT_TRUE(Await([&] { return cpu.metrics.totals().executions > 0; }));
  uint64_t settled = 0;
  ASSERT_TRUE(Await([&] {
    const uint64_t before = cpu.metrics.totals().executions;
    absl::SleepFor(absl::Milliseconds(200));
    settled = cpu.metrics.totals().executions;
    return settled == before && cpu.server.scheduler().Load().in_flight_requests == 0;
  }));
  EXPECT_LT(settled, kRequests);
  // Responses that are neither in the socket nor with the client: at most the budget, the one that
  // crossed it, and those that were already in flight then.
  EXPECT_LE(cpu.executor.memory_usage().used_bytes, int64_t{16} << 20);
  uint64_t answered = 0;
  StreamResponse response;
  while (stream->Read(&response)) ++answered;
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answered, kRequests);
  EXPECT_TRUE(Await([&] { return cpu.executor.memory_usage().used_bytes == 0; }));
}

TEST(MixedLoadTest, ClientsThatVanishInMidCallLeaveNothingBehind) {
  CpuServer cpu;
  for (int round = 0; round < 20; ++round) {
    auto stub = NormalizationService::NewStub(cpu.server.Connect());
    auto context = std::make_unique<grpc::ClientContext>();
    auto stream = stub->NormalizeStream(context.get());
    for (uint64_t id = 0; id < 8; ++id) {
      stream->Write(ToStream(id, CheckedRequest(id + static_cast<uint64_t>(round), 4000)));
    }
    context->TryCancel();
    stream->Finish();
  }
  EXPECT_TRUE(Await([&] {
    return cpu.server.scheduler().Load().in_flight_requests == 0 &&
           cpu.executor.memory_usage().used_bytes == 0;
  }));
  auto stub = NormalizationService::NewStub(cpu.server.Connect());
  grpc::ClientContext context;
  norm::v1::NormalizeResponse response;
  EXPECT_TRUE(stub->Normalize(&context, norm::test::CanaryRequest(), &response).ok());
}

}  // namespace
}  // namespace norm::server
