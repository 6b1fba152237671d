// What surrounds the data path: server information, statistics, health, reflection, listening.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "norm/v1/server.grpc.pb.h"
#include "tests/integration/await.h"
#include "tests/integration/health_check.h"
#include "tests/support/cpu_server.h"
#include "tests/support/request_builder.h"

namespace norm::server {
namespace {

using norm::test::CanaryRequest;
using norm::test::CpuServer;
using norm::test::InProcessServerOptions;

class ServicesTest : public testing::Test {
 protected:
  std::string CheckHealth(const std::string& service) const {
    return norm::test::CheckHealth(channel_, service);
  }

  CpuServer cpu_;
  std::shared_ptr<grpc::Channel> channel_ = cpu_.server.Connect();
};

TEST_F(ServicesTest, InfoNamesDevicesLimitsAndCapabilities) {
  auto stub = norm::v1::ServerService::NewStub(channel_);
  grpc::ClientContext context;
  norm::v1::ServerInfo info;
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.version(), "0.0.0-test");
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).name(), "cpu");
  EXPECT_TRUE(info.devices(0).healthy());
  EXPECT_EQ(info.limits().max_message_bytes(), uint64_t{256} << 20);
  EXPECT_EQ(info.limits().max_stream_uploads(), 64U);
  EXPECT_EQ(info.limits().stream_window_bytes(), uint64_t{64} << 20);
  EXPECT_EQ(info.capabilities_size(), 3 * 2 * 4);
  EXPECT_FALSE(info.draining());
}

TEST_F(ServicesTest, StatisticsCountWhatWasServed) {
  auto norm_stub = norm::v1::NormalizationService::NewStub(channel_);
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    norm::v1::NormalizeResponse response;
    ASSERT_TRUE(norm_stub->Normalize(&context, CanaryRequest(), &response).ok());
    EXPECT_EQ(response.timing().device(), "cpu");
    EXPECT_GT(response.timing().total_us(), 0);
    EXPECT_GT(response.timing().decode_us(), 0);
    EXPECT_EQ(response.timing().batch_requests(), 1);
    EXPECT_EQ(response.timing().batch_rows(), 1);
    EXPECT_GE(response.timing().total_us(),
              response.timing().decode_us() + response.timing().kernel_us());
  }
  {
    grpc::ClientContext context;
    norm::v1::NormalizeResponse response;
    EXPECT_FALSE(norm_stub->Normalize(&context, {}, &response).ok());
  }
  auto stub = norm::v1::ServerService::NewStub(channel_);
  norm::v1::ServerStatistics statistics;
  ASSERT_TRUE(norm::test::Await([&] {
    grpc::ClientContext context;
    return stub->GetStatistics(&context, {}, &statistics).ok() && statistics.executions() == 3 &&
           statistics.in_flight_requests() == 0;
  }));
  EXPECT_EQ(statistics.requests_ok(), 3U);
  EXPECT_EQ(statistics.requests_failed(), 1U);
  EXPECT_EQ(statistics.rows(), 3U);
  EXPECT_EQ(statistics.bytes_in(), 3U * 32);
  EXPECT_EQ(statistics.bytes_out(), 3U * 16);
}

TEST_F(ServicesTest, HealthFollowsReadiness) {
  const std::vector<std::string> services = {"", "norm.v1.NormalizationService",
                                             "norm.v1.ServerService", "norm.v1.EchoService"};
  for (const std::string& service : services) EXPECT_EQ(CheckHealth(service), "SERVING") << service;
  EXPECT_EQ(CheckHealth("liveness"), "SERVING");
  EXPECT_EQ(CheckHealth("no.such.Service"), std::to_string(grpc::StatusCode::NOT_FOUND));
  cpu_.server.server().SetHealthy(false);
  for (const std::string& service : services) {
    EXPECT_EQ(CheckHealth(service), "NOT_SERVING") << service;
  }
  EXPECT_EQ(CheckHealth("liveness"), "NOT_SERVING");
  cpu_.server.server().SetHealthy(true);
  EXPECT_EQ(CheckHealth(""), "SERVING");
}

class WatchTest : public ServicesTest {
 protected:
  using Response = grpc::health::v1::HealthCheckResponse;

  /// One caller that watches `service`.
  struct Watch {
    Watch(const std::shared_ptr<grpc::Channel>& channel, const std::string& service)
        : stub(grpc::health::v1::Health::NewStub(channel)) {
      grpc::health::v1::HealthCheckRequest request;
      request.set_service(service);
      reader = stub->Watch(&context, request);
    }
    /// The next status; "END" when the stream has none.
    std::string Next() {
      Response response;
      return reader->Read(&response) ? Response::ServingStatus_Name(response.status()) : "END";
    }

    std::unique_ptr<grpc::health::v1::Health::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<Response>> reader;
  };
};

TEST_F(WatchTest, EachChangeIsTold) {
  Watch server(channel_, "");
  Watch liveness(channel_, "liveness");
  Watch unknown(channel_, "no.such.Service");
  EXPECT_EQ(server.Next(), "SERVING");
  EXPECT_EQ(liveness.Next(), "SERVING");
  EXPECT_EQ(unknown.Next(), "SERVICE_UNKNOWN");
  for (const bool healthy : {false, true, false}) {
    cpu_.server.server().SetHealthy(healthy);
    EXPECT_EQ(server.Next(), healthy ? "SERVING" : "NOT_SERVING");
    EXPECT_EQ(liveness.Next(), healthy ? "SERVING" : "NOT_SERVING");
  }
  unknown.context.TryCancel();
  EXPECT_EQ(unknown.Next(), "END");
  EXPECT_EQ(unknown.reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  cpu_.server.server().SetHealthy(true);
  EXPECT_EQ(server.Next(), "SERVING");
}

TEST_F(WatchTest, DrainIsToldAndDoesNotWaitForWatchers) {
  InProcessServerOptions options;
  options.grpc.drain_delay = absl::Seconds(1);
  CpuServer cpu(options);
  const std::shared_ptr<grpc::Channel> channel = cpu.server.Connect();
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < 20; ++i) {
    watches.push_back(std::make_unique<Watch>(channel, i % 2 == 0 ? "" : "liveness"));
    EXPECT_EQ(watches.back()->Next(), "SERVING");
  }
  EXPECT_TRUE(cpu.server.server().Drain().ok());
  for (size_t i = 0; i < watches.size(); ++i) {
    if (i % 2 == 0) {
      EXPECT_EQ(watches[i]->Next(), "NOT_SERVING");
    }
    EXPECT_EQ(watches[i]->Next(), "END");
    EXPECT_FALSE(watches[i]->reader->Finish().ok());
  }
}

TEST_F(ServicesTest, ReflectionIsServed) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::Slice list_services("\x3a\x01*");  // list_services = 7: "*"
  call->Write(grpc::ByteBuffer(&list_services, 1), nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::Slice slice;
  ASSERT_TRUE(answer.DumpToSingleSlice(&slice).ok());
  const std::string text(reinterpret_cast<const char*>(slice.begin()), slice.size());
  EXPECT_THAT(text, testing::HasSubstr("norm.v1.NormalizationService"));
  EXPECT_THAT(text, testing::HasSubstr("norm.v1.ServerService"));
  EXPECT_THAT(text, testing::HasSubstr("norm.v1.EchoService"));
  call->WritesDone(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
}

/// The response of EchoService.Echo to the bytes `request`, with norm-echo-bytes where it is given.
struct Echoed {
  grpc::Status status;
  std::string bytes;
};
Echoed Echo(const std::shared_ptr<grpc::Channel>& channel, const std::string& request,
            const std::string& size = "") {
  grpc::ClientContext context;
  if (!size.empty()) context.AddMetadata("norm-echo-bytes", size);
  const grpc::Slice slice(request);
  const grpc::ByteBuffer bytes(&slice, 1);
  grpc::ByteBuffer response;
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  auto call = stub.PrepareUnaryCall(&context, "/norm.v1.EchoService/Echo", bytes, &queue);
  call->StartCall();
  Echoed echoed;
  call->Finish(&response, &echoed.status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  std::vector<grpc::Slice> slices;
  if (echoed.status.ok() && response.Dump(&slices).ok()) {
    for (const grpc::Slice& part : slices)
      echoed.bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return echoed;
}

TEST_F(ServicesTest, EchoSendsBackWhatItGets) {
  // No protobuf on purpose, and more than one slice.
  std::string message(3'000'001, '\0');
  for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<char>(i % 251);
  const Echoed echoed = Echo(channel_, message);
  ASSERT_TRUE(echoed.status.ok()) << echoed.status.error_message();
  EXPECT_TRUE(echoed.bytes == message);
  EXPECT_EQ(Echo(channel_, "").bytes, "");
  EXPECT_TRUE(Echo(channel_, "").status.ok());
}

TEST_F(ServicesTest, EchoMakesResponsesOfTheSizeAskedFor) {
  std::string message(3'000'001, '\0');
  for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<char>(i % 251);
  EXPECT_TRUE(Echo(channel_, message, "3000001").bytes == message);
  EXPECT_TRUE(Echo(channel_, message, "1000003").bytes == message.substr(0, 1'000'003));
  EXPECT_TRUE(Echo(channel_, message, "3000101").bytes == message + std::string(100, '\0'));
  EXPECT_EQ(Echo(channel_, "abc", "0").bytes, "");
  EXPECT_TRUE(Echo(channel_, "abc", "0").status.ok());
  EXPECT_EQ(Echo(channel_, "", "1024").bytes, std::string(1024, '\0'));
}

TEST_F(ServicesTest, EchoRefusesSizesThatItCannotMake) {
  const Echoed longer = Echo(channel_, "abc", "1028");
  EXPECT_EQ(longer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(longer.status.error_message(),
            "norm-echo-bytes: 1028 is over the 3 bytes of the request and 1024");
  for (const char* size : {"-1", "1.5", "many", "99999999999999999999"}) {
    const Echoed refused = Echo(channel_, "abc", size);
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << size;
    EXPECT_THAT(refused.status.error_message(), testing::HasSubstr(size));
  }
  EXPECT_EQ(Echo(channel_, "abc", "18446744073709551615").status.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServicesTest, BusyPortAndBadAddressAreErrorsInOneLine) {
  Metrics metrics({"cpu"}, {});
  const Logger log({LogLevel::kError, LogFormat::kText});
  const auto start = [&](const std::string& listen) {
    GrpcServerOptions options;
    options.listen = listen;
    return GrpcServer::Start(options, {}, cpu_.server.scheduler(), metrics, Clock::Real(), log)
        .status();
  };
  const absl::Status busy = start(cpu_.server.address());
  EXPECT_EQ(busy.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(busy.message()), testing::HasSubstr("Address already in use"));
  EXPECT_EQ(start("nonsense").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(start("127.0.0.1:x").code(), absl::StatusCode::kInvalidArgument);
}

/// Whether a connection that pings every 100 ms without calls is still the first one after a second
/// and a half.
bool SurvivesPings(absl::Duration allowed) {
  InProcessServerOptions options;
  options.grpc.min_client_ping_interval = allowed;
  CpuServer cpu(options);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 100);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_MIN_SENT_PING_INTERVAL_WITHOUT_DATA_MS, 100);
  auto channel = grpc::CreateCustomChannel(cpu.server.address(), grpc::InsecureChannelCredentials(),
                                           arguments);
  const auto soon = [] { return std::chrono::system_clock::now() + std::chrono::seconds(30); };
  EXPECT_TRUE(channel->WaitForConnected(soon()));
  const bool lost = channel->WaitForStateChange(
      GRPC_CHANNEL_READY, std::chrono::system_clock::now() + std::chrono::milliseconds(5500));
  auto stub = norm::v1::NormalizationService::NewStub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  norm::v1::NormalizeResponse response;
  EXPECT_TRUE(stub->Normalize(&context, CanaryRequest(), &response).ok());
  return !lost;
}

TEST(KeepaliveTest, PingsWithinTheAllowedRateKeepTheConnection) {
  EXPECT_TRUE(SurvivesPings(absl::Milliseconds(500)));
}

TEST(KeepaliveTest, FasterPingsEndIt) { EXPECT_FALSE(SurvivesPings(absl::Seconds(60))); }

}  // namespace
}  // namespace norm::server
