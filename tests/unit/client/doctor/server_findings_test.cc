// Every finding about a server, from facts written by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "client/normctl/doctor/server_findings.h"
#include "tests/unit/client/doctor/expected_findings.h"

namespace norm::normctl {
namespace {

/// A server of this version where everything is right.
ServerFacts Serving() {
  ServerFacts facts;
  facts.address = "h:1";
  facts.port = {.state = PortState::kOpen, .speech = PortSpeech::kPlainHttp2};
  facts.health = client::Health::kServing;
  facts.info.emplace();
  facts.info->version = "1.2.3";
  facts.info->cuda_architectures = {"90-real"};
  facts.info->devices = {
      {.name = "cuda:0", .model = "NVIDIA H200", .compute_capability = 90, .healthy = true}};
  facts.error = 1e-7;
  facts.device = "cuda:0";
  facts.kernel_rate = 2e12;
  return facts;
}

absl::Status Unreachable(const std::string& text) {
  // What norm::client marks: an address where nobody listens.
  absl::Status status = (*client::Client::Create("127.0.0.1:1", {.retry = {.max_attempts = 1}}))
                            ->CheckHealth("", absl::Seconds(30))
                            .status();
  absl::Status marked = absl::UnavailableError(text);
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { marked.SetPayload(url, payload); });
  EXPECT_TRUE(client::IsServerUnreachable(marked));
  return marked;
}

struct ServerCase {
  std::string name;
  std::function<void(ServerFacts*)> change;
  ExpectedFinding expected;
};

void ExpectEach(const std::vector<ServerCase>& cases) {
  for (const ServerCase& one : cases) {
    ServerFacts facts = Serving();
    one.change(&facts);
    Expect(one.name, JudgeServer(facts, Healthy()), one.expected);
  }
}

/// Nothing was answered but the port's state.
std::function<void(ServerFacts*)> Fails(PortFacts port, const absl::Status& status) {
  return [port, status](ServerFacts* facts) {
    *facts = ServerFacts{.address = "h:1", .port = port, .failures = {{"health", status}}};
  };
}

TEST(ServerFindingsTest, AHealthyServerHasNone) {
  for (const Finding& finding : JudgeServer(Serving(), Healthy()))
    EXPECT_EQ(finding.severity, Severity::kOk) << finding.seen;
}

TEST(ServerFindingsTest, PortsAndTls) {
  const PortFacts open = {.state = PortState::kOpen, .speech = PortSpeech::kPlainHttp2};
  ExpectEach({
      {"name", Fails({PortState::kNoName, {}, "Name or service not known"}, Unreachable("dns")),
       Severity::kError, "h:1 port", "the name is not known: Name or service not known", "DNS"},
      {"refused", Fails({PortState::kRefused, {}, "Connection refused"}, Unreachable("refused")),
       Severity::kError, "h:1 port", "Connection refused", "--listen=0.0.0.0"},
      {"silent", Fails({PortState::kSilent, {}, "no answer"}, Unreachable("timeout")),
       Severity::kError, "h:1 port", "no answer", "firewall"},
      {"metrics port", Fails({PortState::kOpen, PortSpeech::kTextHttp, ""}, Unreachable("closed")),
       Severity::kError, "h:1 health", "speaks HTTP in text", "8471 the one for metrics"},
      {"TLS server", Fails({PortState::kOpen, PortSpeech::kTls, ""}, Unreachable("Socket closed")),
       Severity::kError, "h:1 health", "the server takes no plain text", "--tls-ca"},
      {"TLS server that closes",
       Fails({PortState::kOpen, PortSpeech::kNothing, ""}, Unreachable("Socket closed")),
       Severity::kError, "h:1 health", "the server takes no plain text", "--tls-ca"},
      {"wrong name",
       Fails({PortState::kOpen, PortSpeech::kNothing, ""},
             Unreachable("Peer name h is not in peer certificate")),
       Severity::kError, "h:1 health", "TLS fails", "names the host"},
      {"plain server", Fails(open, Unreachable("Ssl handshake failed: WRONG_VERSION_NUMBER")),
       Severity::kError, "h:1 health", "the server speaks plain text", "leave the TLS options out"},
      {"certificate",
       Fails({PortState::kOpen, PortSpeech::kTls, ""},
             Unreachable("Ssl handshake failed: CERTIFICATE_VERIFY_FAILED")),
       Severity::kError, "h:1 health", "TLS fails", "has not expired"},
      {"no answer", Fails(open, Unreachable("closed")), Severity::kError, "h:1 health", "closed",
       "no server answered"},
  });
}

TEST(ServerFindingsTest, WhatAServerRefuses) {
  const PortFacts open = {.state = PortState::kOpen, .speech = PortSpeech::kPlainHttp2};
  ExpectEach({
      {"token", Fails(open, absl::UnauthenticatedError("no token")), Severity::kError, "h:1 health",
       "UNAUTHENTICATED: no token", "token"},
      {"admin", Fails(open, absl::PermissionDeniedError("admin")), Severity::kError, "h:1 health",
       "PERMISSION_DENIED", "apart from data"},
      {"other gRPC server", Fails(open, absl::UnimplementedError("")), Severity::kError,
       "h:1 health", "UNIMPLEMENTED", "no normd"},
      {"late", Fails(open, absl::DeadlineExceededError("5s")), Severity::kError, "h:1 health",
       "DEADLINE_EXCEEDED", "silent"},
      {"illegal access", Fails(open, absl::InternalError("cudaErrorIllegalAddress")),
       Severity::kError, "h:1 health", "cudaErrorIllegalAddress", "exits with 4"},
      {"full", Fails(open, absl::ResourceExhaustedError("too large")), Severity::kError,
       "h:1 health", "too large", "log"},
  });
}

TEST(ServerFindingsTest, StateVersionDevicesAndClock) {
  ExpectEach({
      {"not serving", [](ServerFacts* facts) { facts->health = client::Health::kNotServing; },
       Severity::kError, "h:1 health", "not SERVING", "lost"},
      {"draining",
       [](ServerFacts* facts) {
         facts->health = client::Health::kNotServing;
         facts->info->draining = true;
       },
       Severity::kWarning, "h:1 health", "draining", "restart"},
      {"version", [](ServerFacts* facts) { facts->info->version = "1.1.0"; }, Severity::kWarning,
       "h:1 version", "normd 1.1.0, normctl 1.2.3", "one version"},
      {"lost device", [](ServerFacts* facts) { facts->info->devices[0].healthy = false; },
       Severity::kError, "h:1 cuda:0", "is lost", "compute-sanitizer"},
      {"no image", [](ServerFacts* facts) { facts->info->devices[0].compute_capability = 80; },
       Severity::kError, "h:1 cuda:0", "sm_80: no kernel image: the server was built for 90-real",
       "80-real"},
      {"CPU",
       [](ServerFacts* facts) {
         facts->info->devices[0] = {.name = "cpu", .model = "AVX2", .healthy = true};
       },
       Severity::kWarning, "h:1 cpu", "computes on the CPU (AVX2), and GPUs are here",
       "--device=cuda"},
      {"clock", [](ServerFacts* facts) { facts->clock_ahead = absl::Seconds(-90); },
       Severity::kWarning, "h:1 clock", "-90.000 s ahead", "NTP"},
      {"NaN", [](ServerFacts* facts) { facts->error = std::nan(""); }, Severity::kError,
       "h:1 result", "NaN in a LayerNorm", "ECC"},
      {"wrong", [](ServerFacts* facts) { facts->error = 0.5; }, Severity::kError, "h:1 result",
       "0.5", "normctl verify"},
      {"slow kernel", [](ServerFacts* facts) { facts->kernel_rate = 50e9; }, Severity::kWarning,
       "h:1 kernel", "50 GB/s on cuda:0; a copy 4260", "normbench kernels"},
  });
}

}  // namespace
}  // namespace norm::normctl
