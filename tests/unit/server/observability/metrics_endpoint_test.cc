#include "server/observability/metrics_endpoint.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/http_get.h"

namespace norm::server {
namespace {

using norm::test::HttpGet;

TEST(MetricsEndpointTest, ServesTheCountersOnAnyFreePort) {
  Metrics metrics({"cpu"}, {});
  metrics.RecordMalformed(Direction::kForward);
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", metrics);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_THAT((*endpoint)->address(), testing::MatchesRegex("127.0.0.1:[1-9][0-9]*"));
  const std::string reply = HttpGet((*endpoint)->address(), "/metrics");
  EXPECT_THAT(reply, testing::HasSubstr("200 OK"));
  EXPECT_THAT(reply, testing::HasSubstr("normd_requests_total{op=\"unknown\",direction=\"forward\","
                                        "dtype=\"unknown\",code=\"INVALID_ARGUMENT\"} 1"));
}

TEST(MetricsEndpointTest, SilentConnectionsDoNotKeepAScraperOut) {
  Metrics metrics({"cpu"}, {});
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", metrics);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string& address = (*endpoint)->address();
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  std::vector<int> silent;
  for (int i = 0; i < 5; ++i) {
    silent.push_back(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect(silent.back(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  EXPECT_THAT(HttpGet(address, "/metrics"), testing::HasSubstr("200 OK"));
  for (const int fd : silent) close(fd);
}

TEST(MetricsEndpointTest, BusyPortIsAnError) {
  Metrics metrics({"cpu"}, {});
  auto first = MetricsEndpoint::Start("127.0.0.1:0", metrics);
  ASSERT_TRUE(first.ok());
  auto second = MetricsEndpoint::Start((*first)->address(), metrics);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr((*first)->address()));
}

TEST(MetricsEndpointTest, RefusesWhatIsNoAddress) {
  Metrics metrics({"cpu"}, {});
  for (const char* listen : {"", "9100", ":9100", "localhost:port", "localhost:70000"}) {
    EXPECT_EQ(MetricsEndpoint::Start(listen, metrics).status().code(),
              absl::StatusCode::kInvalidArgument)
        << listen;
  }
}

}  // namespace
}  // namespace norm::server
