// Health over gRPC and over HTTP: one value, whatever happens to the server.
#include "server/transport/health.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "server/observability/metrics_endpoint.h"
#include "tests/support/http_get.h"

namespace norm::server {
namespace {

/// What grpc.health.v1 would say.
class FakeHealthService final : public grpc::HealthCheckServiceInterface {
 public:
  void SetServingStatus(const std::string& service, bool serving) override {
    serving_[service] = serving;
  }
  void SetServingStatus(bool serving) override {
    for (auto& [service, status] : serving_) status = serving;
  }
  bool serving(const std::string& service) const { return serving_.at(service); }

 private:
  std::map<std::string, bool> serving_;
};

class HealthTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(endpoint_.ok()) << endpoint_.status(); }

  /// `state` is what the HTTP replies say.
  void Expect(bool ready, bool live, const std::string& state) const {
    for (const char* service :
         {"", "norm.v1.NormalizationService", "norm.v1.ServerService", "norm.v1.EchoService"}) {
      EXPECT_EQ(service_.serving(service), ready) << state << service;
    }
    EXPECT_EQ(service_.serving("liveness"), live) << state;
    ExpectReply("/readyz", ready, state);
    ExpectReply("/healthz", live, state);
    const std::string metric = std::string("\nnormd_ready ") + (ready ? "1\n" : "0\n");
    EXPECT_NE(test::HttpGet(address(), "/metrics").find(metric), std::string::npos) << state;
  }

  void ExpectReply(const std::string& path, bool good, const std::string& state) const {
    const std::string reply = test::HttpGet(address(), path);
    EXPECT_EQ(reply.substr(0, 13), good ? "HTTP/1.1 200 " : "HTTP/1.1 503 ") << path << state;
    EXPECT_EQ(test::BodyOf(reply), state + "\n") << path;
  }

  const std::string& address() const { return (*endpoint_)->address(); }

  Metrics metrics_{{"cpu"}, {}};
  absl::StatusOr<std::unique_ptr<MetricsEndpoint>> endpoint_ =
      MetricsEndpoint::Start("127.0.0.1:0", metrics_);
  FakeHealthService service_;
};

TEST_F(HealthTest, GrpcAndHttpAgreeFromStartToEnd) {
  Health health(&service_, metrics_);
  Expect(false, false, "starting");
  health.SetHealthy(true);
  Expect(true, true, "serving");
  health.SetHealthy(false);
  Expect(false, false, "no healthy device");
  health.SetHealthy(true);
  Expect(true, true, "serving");
  health.SetDraining();
  Expect(false, true, "draining");
  health.SetHealthy(false);
  Expect(false, false, "no healthy device");
}

TEST_F(HealthTest, NoDeviceFromTheStartIsNoStart) {
  Health health(&service_, metrics_);
  health.SetHealthy(false);
  Expect(false, false, "no healthy device");
}

TEST_F(HealthTest, BeforeTheServerListensItIsStarting) {
  ExpectReply("/readyz", false, "starting");
  ExpectReply("/healthz", false, "starting");
}

}  // namespace
}  // namespace norm::server
