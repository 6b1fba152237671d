#include "server/observability/metrics_endpoint.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <zlib.h>

#include <string>
#include <vector>

#include "server/observability/http_server.h"
#include "tests/support/http_get.h"

namespace norm::server {
namespace {

using norm::test::BodyOf;
using norm::test::HttpAsk;
using norm::test::HttpGet;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string Gunzip(const std::string& bytes) {
  z_stream stream{};
  inflateInit2(&stream, 16 + MAX_WBITS);
  std::string text(1 << 20, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  return text;
}

/// What stands between `before` and the next `after`.
std::string Between(const std::string& text, const std::string& before, const std::string& after) {
  const size_t start = text.find(before);
  if (start == std::string::npos) return "";
  const size_t from = start + before.size();
  return text.substr(from, text.find(after, from) - from);
}

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

TEST(MetricsEndpointTest, CompressesForWhoAcceptsIt) {
  Metrics metrics({"cpu"}, {});
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", metrics);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string reply =
      HttpAsk((*endpoint)->address(), "GET", "/metrics", "Accept-Encoding: gzip;q=0.5\r\n");
  EXPECT_THAT(reply, AllOf(HasSubstr("\r\nContent-Encoding: gzip\r\n"),
                           HasSubstr("\r\nContent-Type: text/plain; version=0.0.4;")));
  EXPECT_THAT(Gunzip(BodyOf(reply)),
              AllOf(StartsWith("# HELP normd_requests_total"), HasSubstr("\nnormd_streams 0\n")));
  EXPECT_THAT(HttpAsk((*endpoint)->address(), "GET", "/metrics", "Accept-Encoding: identity\r\n"),
              AllOf(Not(HasSubstr("Content-Encoding")), HasSubstr("\nnormd_streams 0\n")));
}

TEST(MetricsEndpointTest, ReadsAcceptEncoding) {
  for (const char* accepts :
       {"gzip", "deflate, gzip;q=1.0, *;q=0.5", "br, GZIP", "*", "gzip; q=0.1"}) {
    EXPECT_TRUE(AcceptsGzip(accepts)) << accepts;
  }
  for (const char* refuses :
       {"", "identity", "br", "gzip;q=0", "gzip;q=0, *", "gzip;q=x", "*;q=0", "xgzip"}) {
    EXPECT_FALSE(AcceptsGzip(refuses)) << refuses;
  }
}

TEST(MetricsEndpointTest, ServesGetAndHeadOfKnownPathsAlone) {
  Metrics metrics({"cpu"}, {});
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", metrics);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string& address = (*endpoint)->address();
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    EXPECT_THAT(HttpAsk(address, method, "/metrics",
                        "Content-Length: 0\r\nOrigin: http://elsewhere\r\n"
                        "Access-Control-Request-Method: GET\r\n"),
                AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: GET, HEAD\r\n"),
                      Not(HasSubstr("Access-Control"))))
        << method;
  }
  for (const char* path : {"/none", "/metrics/", "/metrics/x", "/index.html", "/../etc/passwd",
                           "/status.json/..%2f..%2fetc/passwd", "/favicon.ico"}) {
    EXPECT_THAT(HttpGet(address, path), StartsWith("HTTP/1.1 4")) << path;
  }
  EXPECT_THAT(HttpGet(address, "/metrics?anything=1"), StartsWith("HTTP/1.1 200 "));
  const std::string get = HttpGet(address, "/healthz");
  const std::string head = HttpAsk(address, "HEAD", "/healthz");
  EXPECT_EQ(BodyOf(get), "starting\n");
  EXPECT_EQ(head, get.substr(0, get.size() - BodyOf(get).size()));
}

TEST(MetricsEndpointTest, EveryReplyLimitsWhatBrowsersDoWithIt) {
  Metrics metrics({"cpu"}, {});
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", metrics);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  for (const char* path : {"/", "/metrics", "/status.json", "/healthz", "/readyz", "/none"}) {
    EXPECT_THAT(HttpGet((*endpoint)->address(), path),
                AllOf(HasSubstr("\r\nX-Content-Type-Options: nosniff\r\n"),
                      HasSubstr("\r\nContent-Security-Policy: default-src 'none'; "),
                      HasSubstr("frame-ancestors 'none'\r\n"),
                      HasSubstr("\r\nCache-Control: no-store\r\n")))
        << path;
  }
}

TEST(MetricsEndpointTest, ThePageRunsItsOwnScriptAlone) {
  Metrics metrics({"cpu"}, {});
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", metrics);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string page = HttpGet((*endpoint)->address(), "/");
  EXPECT_THAT(page, AllOf(StartsWith("HTTP/1.1 200 "),
                          HasSubstr("\r\nContent-Type: text/html; charset=utf-8\r\n")));
  const std::string nonce = Between(page, "script-src 'nonce-", "'");
  EXPECT_THAT(nonce, testing::MatchesRegex("[0-9a-f]{32}"));
  EXPECT_THAT(page, AllOf(HasSubstr("; style-src 'nonce-" + nonce + "'; connect-src 'self'; "),
                          HasSubstr("<style nonce=\"" + nonce + "\">"),
                          HasSubstr("<script nonce=\"" + nonce + "\">"), HasSubstr("</html>")));
  EXPECT_THAT(page, Not(HasSubstr("unsafe-inline")));
  EXPECT_THAT(HttpGet((*endpoint)->address(), "/"), Not(HasSubstr(nonce)));
}

TEST(MetricsEndpointTest, StatusIsOfTheSameCounters) {
  Metrics metrics({"cpu"}, {});
  metrics.RecordMalformed(Direction::kForward);
  auto endpoint = MetricsEndpoint::Start(
      "127.0.0.1:0", metrics, {{.model = "x86-64 AVX2", .healthy = [] { return true; }}});
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_THAT(HttpGet((*endpoint)->address(), "/status.json"),
              AllOf(HasSubstr("\r\nContent-Type: application/json\r\n"),
                    HasSubstr("\"requests\":{\"failed\":1,\"ok\":0,\"rejected\":0}"),
                    HasSubstr("\"model\":\"x86-64 AVX2\"")));
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
