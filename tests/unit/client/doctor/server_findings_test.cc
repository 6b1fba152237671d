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
  facts.clock_ahead = absl::ZeroDuration();
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
       Severity::kError, "h:1 health", "the server speaks TLS", "--tls-ca"},
      {"TLS server that closes",
       Fails({PortState::kOpen, PortSpeech::kNothing, ""}, Unreachable("Socket closed")),
       Severity::kError, "h:1 health", "the server speaks TLS", "--tls-ca"},
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
      {"proxy", Fails(open, absl::UnauthenticatedError("who?")), Severity::kError, "h:1 health",
       "UNAUTHENTICATED: who?", "a proxy between"},
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

TEST(ServerFindingsTest, WhatListsOfTheServerKeepFromACallerIsAWarningWhereItSeesTheRest) {
  const auto refused = [](const char* name, absl::Status status) {
    return [name, status](ServerFacts* facts) {
      (std::string(name) == "info" ? facts->info.reset() : facts->error.reset());
      facts->failures = {{name, status}};
    };
  };
  ExpectEach({
      {"data alone", refused("info", absl::PermissionDeniedError("admin services")),
       Severity::kWarning, "h:1 info",
       "version, devices and clock not seen: PERMISSION_DENIED: admin services", "--admin_tokens"},
      {"no token, data open", refused("info", absl::UnauthenticatedError("a token is needed")),
       Severity::kWarning, "h:1 info", "UNAUTHENTICATED", "--admin_clients"},
      {"admin alone", refused("layer_norm", absl::PermissionDeniedError("data services")),
       Severity::kWarning, "h:1 layer_norm", "results and speed not seen", "--data_tokens"},
      {"nothing",
       [](ServerFacts* facts) {
         facts->info.reset();
         facts->error.reset();
         facts->failures = {{"info", absl::UnauthenticatedError("the token is not known")},
                            {"layer_norm", absl::UnauthenticatedError("the token is not known")}};
       },
       Severity::kError, "h:1 layer_norm", "the token is not known", "--data_tokens"},
  });
}

TEST(ServerFindingsTest, CredentialsThatCannotBeUsed) {
  const absl::Status status = absl::InvalidArgumentError("token_file: '/t' holds no token");
  Expect("file", {JudgeCredentials("h:1", status)},
         {Severity::kError, "h:1 credentials", "token_file: '/t' holds no token", "mend"});
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
      {"no clock", [](ServerFacts* facts) { facts->clock_ahead.reset(); }, Severity::kNote,
       "h:1 clock", "not known", "of this version"},
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
