// normd and normctl as processes: what they say and how they end when certificates, tokens and
// addresses are wrong, and that nothing secret comes into a log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/await.h"
#include "tests/integration/normd_process.h"
#include "tests/support/certificates.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::server {
namespace {

using client::ScratchFolder;
using norm::test::Await;
using norm::test::Canary;
using norm::test::Credential;
using norm::test::NormdProcess;
using norm::test::ProbeTls;
using norm::test::TestAuthority;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kToken[] = "token-that-nobody-may-see";
constexpr char kWrongToken[] = "wrong-token-not-shown-either";

class NormdSecurityTest : public testing::Test {
 protected:
  NormdSecurityTest() {
    folder_.Write("ca.pem", authority_.certificate());
    Put("server", server_);
    folder_.Write("tokens", absl::StrCat(kToken, "\n"));
    for (const char* secret : {"server.key", "tokens"}) chmod((folder_ / secret).c_str(), 0600);
  }

  void Put(const std::string& name, const Credential& credential) const {
    folder_.Write(name + ".pem", credential.certificate);
    folder_.Write(name + ".key", credential.key);
  }
  std::string Flag(const std::string& flag, const std::string& file) const {
    return absl::StrCat("--", flag, "=", folder_ / file);
  }
  std::vector<std::string> Tls(const std::string& cert = "server.pem",
                               const std::string& key = "server.key") const {
    return {Flag("tls_cert", cert), Flag("tls_key", key)};
  }
  std::vector<std::string> MutualTls() const {
    std::vector<std::string> flags = Tls();
    flags.push_back(Flag("tls_client_ca", "ca.pem"));
    return flags;
  }

  /// Ends by itself, with one line.
  static std::string Refusal(std::vector<std::string> flags, int exit_code) {
    flags.push_back("--log_level=error");
    NormdProcess normd(flags);
    EXPECT_EQ(normd.Wait(), exit_code) << normd.output();
    const std::string output = normd.output();
    EXPECT_THAT(output, StartsWith("normd: "));
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
    return output;
  }

  struct Finished {
    int exit_code = -1;
    std::string out;
    std::string error;
  };
  /// `environment`: NAME=value, separated by spaces.
  Finished Normctl(const std::string& arguments, const std::string& environment = "") const {
    const std::string command =
        absl::StrCat(environment, " ", NORMCTL_PATH, " ", arguments, " >", folder_ / "out", " 2>",
                     folder_ / "err", " </dev/null");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ScratchFolder::Read(folder_ / "out"),
            ScratchFolder::Read(folder_ / "err")};
  }
  /// Fails with one line.
  std::string NormctlError(const std::string& arguments, int exit_code) const {
    const Finished finished = Normctl(arguments);
    EXPECT_EQ(finished.exit_code, exit_code) << arguments;
    EXPECT_EQ(std::count(finished.error.begin(), finished.error.end(), '\n'), 1) << finished.error;
    return finished.error;
  }

  const TestAuthority authority_{{.common_name = "authority"}};
  const Credential server_ = authority_.IssueServer();
  const ScratchFolder folder_;
};

TEST_F(NormdSecurityTest, FilesThatCannotBeUsedAreNamedAndExitOne) {
  Put("late", authority_.Issue({.common_name = "late", .not_after = absl::Now() - absl::Hours(1)}));
  Put("early",
      authority_.Issue({.common_name = "early", .not_before = absl::Now() + absl::Minutes(30)}));
  Put("other", authority_.IssueServer());
  folder_.Write("encrypted.key", test::EncryptKey(server_.key, "passphrase"));
  folder_.Write("cut.pem", server_.certificate + server_.certificate.substr(0, 200) +
                               "-----END CERTIFICATE-----\n");
  folder_.Write("empty", "");
  ASSERT_EQ(symlink("loop", (folder_ / "loop").c_str()), 0);
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);

  EXPECT_THAT(Refusal(Tls("none"), 1),
              HasSubstr("--tls_cert: '" + (folder_ / "none") + "' cannot be read: No such file"));
  EXPECT_THAT(Refusal(Tls("loop"), 1), HasSubstr("cannot be read: Too many levels"));
  EXPECT_THAT(Refusal(Tls("fifo"), 1), HasSubstr("fifo' is not a regular file"));
  EXPECT_THAT(Refusal(Tls("empty"), 1), HasSubstr("empty' holds no PEM certificate"));
  EXPECT_THAT(Refusal(Tls("cut.pem"), 1),
              HasSubstr("holds a certificate that cannot be read, behind 1"));
  EXPECT_THAT(Refusal(Tls("late.pem", "late.key"), 1),
              AllOf(HasSubstr("--tls_cert: "), HasSubstr("late.pem' expired at ")));
  EXPECT_THAT(Refusal(Tls("early.pem", "early.key"), 1), HasSubstr("is not valid before "));
  EXPECT_THAT(Refusal(Tls("server.pem", "other.key"), 1),
              AllOf(HasSubstr("--tls_key: "), HasSubstr("other.key' is not the key of the ")));
  EXPECT_THAT(Refusal(Tls("server.pem", "encrypted.key"), 1),
              HasSubstr("holds no PEM private key, or one that needs a passphrase"));
  std::vector<std::string> flags = Tls();
  flags.push_back(Flag("tls_client_ca", "server.key"));
  EXPECT_THAT(Refusal(flags, 1), HasSubstr("--tls_client_ca: '" + (folder_ / "server.key") +
                                           "' holds no PEM certificate"));
  EXPECT_THAT(Refusal({Flag("data_tokens", "empty")}, 1), HasSubstr("empty' holds no token"));
  folder_.Write("short", "seventeen-letters\nshort\n");
  EXPECT_THAT(Refusal({Flag("admin_tokens", "short")}, 1),
              HasSubstr("line 2: the token has 5 characters, fewer than 16"));
  folder_.Write("spaces", "one two three four\n");
  EXPECT_THAT(Refusal({Flag("admin_tokens", "spaces")}, 1),
              AllOf(HasSubstr("line 1: the token has something else"), Not(HasSubstr("three"))));
  flags = MutualTls();
  flags.push_back(Flag("data_clients", "empty"));
  EXPECT_THAT(Refusal(flags, 1), HasSubstr("--data_clients: "));
}

TEST_F(NormdSecurityTest, FlagsThatDoNotFitTogetherExitTwo) {
  EXPECT_THAT(Refusal({Flag("tls_cert", "server.pem")}, 2),
              HasSubstr("--tls_cert: needs --tls_key"));
  EXPECT_THAT(Refusal({Flag("tls_key", "server.key")}, 2),
              HasSubstr("--tls_key: needs --tls_cert"));
  EXPECT_THAT(Refusal({Flag("tls_client_ca", "ca.pem")}, 2), HasSubstr("needs --tls_cert"));
  EXPECT_THAT(Refusal({Flag("data_clients", "x")}, 2), HasSubstr("needs --tls_client_ca"));
  std::vector<std::string> flags = Tls();
  flags.push_back("--insecure");
  EXPECT_THAT(Refusal(flags, 2), HasSubstr("--insecure: cannot be said together with --tls_cert"));
}

TEST_F(NormdSecurityTest, PlaintextBeyondLoopbackMustBeSaid) {
  for (const char* address : {"0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"}) {
    EXPECT_THAT(Refusal({absl::StrCat("--listen=", address)}, 2),
                AllOf(HasSubstr("--listen: must be a loopback address unless"),
                      HasSubstr("--insecure"), HasSubstr(absl::StrCat("'", address, "'"))));
  }
  for (const char* address : {"127.0.0.2:0", "localhost:0"}) {
    NormdProcess normd({absl::StrCat("--listen=", address)});
    EXPECT_TRUE(normd.AwaitReady()) << normd.output();
  }
  NormdProcess said({"--listen=0.0.0.0:0", "--insecure"});
  EXPECT_TRUE(said.AwaitReady()) << said.output();
  EXPECT_TRUE(Canary(*said.Connect()).ok());
  std::vector<std::string> flags = Tls();
  flags.push_back("--listen=0.0.0.0:0");
  NormdProcess encrypted(flags);
  EXPECT_TRUE(encrypted.AwaitReady()) << encrypted.output();
  // Metrics hold nothing secret, and may be seen from elsewhere while tensors may not.
  NormdProcess metrics({"--metrics_listen=0.0.0.0:0"});
  EXPECT_TRUE(metrics.AwaitReady()) << metrics.output();
}

TEST_F(NormdSecurityTest, ABusyPortIsNamedWithTlsToo) {
  NormdProcess first(Tls());
  ASSERT_TRUE(first.AwaitReady());
  std::vector<std::string> flags = Tls();
  flags.push_back("--listen=" + first.Address("grpc"));
  EXPECT_THAT(Refusal(flags, 1), HasSubstr("cannot listen on " + first.Address("grpc")));
}

TEST_F(NormdSecurityTest, NormctlFindsItsCredentialsInFlagsOrEnvironment) {
  Put("client", authority_.Issue({.common_name = "client"}));
  std::vector<std::string> flags = MutualTls();
  flags.push_back(Flag("admin_tokens", "tokens"));
  NormdProcess normd(flags);
  ASSERT_TRUE(normd.AwaitReady());
  const std::string server = " --attempts 1 --server " + normd.Address("grpc");
  const std::string ca = " --tls-ca " + (folder_ / "ca.pem");
  const std::string own =
      absl::StrCat(" --tls-cert ", folder_ / "client.pem", " --tls-key ", folder_ / "client.key");
  const std::string token = " --token-file " + (folder_ / "tokens");
  EXPECT_EQ(Normctl("health" + server + ca + own).out, "SERVING\n");
  EXPECT_EQ(Normctl("info" + server + ca + own + token).exit_code, 0);
  EXPECT_THAT(NormctlError("info" + server + ca + own, 1),
              HasSubstr("PERMISSION_DENIED: client certificate 'client'"));
  EXPECT_THAT(NormctlError("health" + server + ca, 3), HasSubstr("want a client certificate"));
  EXPECT_THAT(NormctlError("health" + server, 3), HasSubstr("nothing but TLS"));
  EXPECT_THAT(NormctlError("health" + server + ca + own + " --tls-name other.example", 3),
              HasSubstr("is for another name"));
  EXPECT_THAT(NormctlError("health --tls-cert x" + server, 2),
              HasSubstr("--tls-cert requires --tls-key"));
  folder_.Write("wrong", kWrongToken);
  EXPECT_THAT(NormctlError("info --token-file " + (folder_ / "wrong") + server + ca + own, 1),
              AllOf(HasSubstr("UNAUTHENTICATED: authorization: the token is not known"),
                    Not(HasSubstr(kWrongToken))));
  EXPECT_THAT(NormctlError("info --server 192.0.2.1:1" + token, 1),
              HasSubstr("would travel unencrypted to '192.0.2.1:1'"));

  const std::string environment = absl::StrCat(
      "NORMD_TLS_CA=", folder_ / "ca.pem", " NORMD_TLS_CERT=", folder_ / "client.pem",
      " NORMD_TLS_KEY=", folder_ / "client.key", " NORMD_TOKEN_FILE=", folder_ / "tokens");
  EXPECT_EQ(Normctl("info" + server, environment).exit_code, 0);
  // The load of bench is secured as well: it asks for information first.
  const std::string bench =
      "bench --shape 1x8 --dtype f32 --warm-up 0 --duration 1 --server " + normd.Address("grpc");
  EXPECT_EQ(Normctl(bench, environment).exit_code, 0);
  EXPECT_THAT(NormctlError(bench, 3), HasSubstr("nothing but TLS"));
}

TEST_F(NormdSecurityTest, DoctorSeesWhatItsTokenGivesAccessTo) {
  folder_.Write("own", "token-of-an-administrator\n");
  NormdProcess normd({Flag("data_tokens", "tokens"), Flag("admin_tokens", "own")});
  ASSERT_TRUE(normd.AwaitReady());
  const std::string doctor = "doctor --device cpu --server " + normd.Address("grpc");
  const std::string name = normd.Address("grpc") + " ";

  const Finished data = Normctl(doctor + " --token-file " + (folder_ / "tokens"));
  EXPECT_EQ(data.exit_code, 0) << data.out;
  EXPECT_THAT(data.out,
              AllOf(HasSubstr(name + "health: SERVING"), HasSubstr(name + "result: largest error"),
                    HasSubstr("warning  " + name +
                              "info: version, devices and clock not "
                              "seen: PERMISSION_DENIED"),
                    HasSubstr("its token to --admin_tokens")));
  const Finished admin = Normctl(doctor + " --token-file " + (folder_ / "own"));
  EXPECT_EQ(admin.exit_code, 0) << admin.out;
  EXPECT_THAT(admin.out, AllOf(HasSubstr(name + "version: normd"),
                               HasSubstr("warning  " + name +
                                         "layer_norm: results and speed not "
                                         "seen: PERMISSION_DENIED"),
                               HasSubstr("its token to --data_tokens")));
  const Finished nobody = Normctl(doctor);
  EXPECT_EQ(nobody.exit_code, 1) << nobody.out;
  EXPECT_THAT(nobody.out,
              AllOf(HasSubstr(name + "health: SERVING"), HasSubstr("error    " + name + "info: "),
                    HasSubstr("error    " + name + "layer_norm: ")));
}

TEST_F(NormdSecurityTest, AFailedHandshakeLeavesALineThatExplainsIt) {
  NormdProcess normd(MutualTls());
  ASSERT_TRUE(normd.AwaitReady());
  EXPECT_FALSE(Canary(*normd.Connect()).ok());
  EXPECT_TRUE(Await([&] {
    return absl::StrContains(
        normd.output(), "warning TLS handshake failed reason=\"the client does not speak TLS\"");
  })) << normd.output();
  NormdProcess json({MutualTls()[0], MutualTls()[1], MutualTls()[2], "--log_format=json"});
  ASSERT_TRUE(json.AwaitReady());
  EXPECT_EQ(Normctl("health --attempts 1 --server " + json.Address("grpc") + " --tls-ca " +
                    (folder_ / "ca.pem"))
                .exit_code,
            3);
  EXPECT_TRUE(Await([&] {
    return absl::StrContains(json.output(), "\"reason\":\"the client shows no certificate");
  })) << json.output();
}

TEST_F(NormdSecurityTest, ARefusedReplacementIsLoggedAndTheOldStaysInForce) {
  std::vector<std::string> flags = Tls();
  flags.push_back(Flag("data_tokens", "tokens"));
  NormdProcess normd(flags);
  ASSERT_TRUE(normd.AwaitReady());
  const auto logged = [&normd](const std::string& text) {
    return Await([&] { return absl::StrContains(normd.output(), text); });
  };
  const Credential next = authority_.IssueServer("next");
  folder_.Write("server.pem", next.certificate);
  EXPECT_TRUE(logged("server.key' is not the key of the certificate"));
  EXPECT_EQ(ProbeTls(normd.Address("grpc")).common_name, "server");
  folder_.Write("tokens", "");
  EXPECT_TRUE(logged("tokens' holds no token"));
  const std::string info =
      absl::StrCat("rmsnorm --input ", NORM_TEST_DATA_DIR, "/digits_nc.npy --output ",
                   folder_ / "y.npy", " --server ", normd.Address("grpc"), " --tls-ca ",
                   folder_ / "ca.pem", " --token-file ", folder_ / "own");
  folder_.Write("own", kToken);
  EXPECT_EQ(Normctl(info).exit_code, 0) << Normctl(info).error;
  unlink((folder_ / "server.key").c_str());
  EXPECT_TRUE(logged("server.key' cannot be read"));
  EXPECT_EQ(ProbeTls(normd.Address("grpc")).common_name, "server");
  folder_.Write("server.key", next.key);
  EXPECT_TRUE(logged("certificates replaced tls=on subject=\"CN=next\""));
  EXPECT_EQ(ProbeTls(normd.Address("grpc")).common_name, "next");
  folder_.Write("tokens", absl::StrCat(kToken, "\n", kWrongToken, "\n"));
  EXPECT_TRUE(logged("access lists replaced data=\"2 tokens, 0 clients\""));
}

TEST_F(NormdSecurityTest, LogsHoldNoSecret) {
  chmod((folder_ / "server.key").c_str(), 0644);
  chmod((folder_ / "tokens").c_str(), 0666);
  std::vector<std::string> flags = Tls();
  for (const char* flag : {"data_tokens", "admin_tokens"}) flags.push_back(Flag(flag, "tokens"));
  flags.push_back("--log_level=debug");
  NormdProcess normd(flags);
  ASSERT_TRUE(normd.AwaitReady());
  folder_.Write("own", kToken);
  folder_.Write("wrong", kWrongToken);
  const std::string server =
      " --server " + normd.Address("grpc") + " --tls-ca " + (folder_ / "ca.pem");
  std::string all;
  for (const std::string token : {"own", "wrong"}) {
    const Finished finished = Normctl("info" + server + " --token-file " + (folder_ / token));
    EXPECT_EQ(finished.exit_code, token == "own" ? 0 : 1);
    absl::StrAppend(&all, finished.out, finished.error);
  }
  folder_.Write("tokens", absl::StrCat(kToken, " ", kToken, "\n"));
  EXPECT_TRUE(Await([&] { return absl::StrContains(normd.output(), "the token has something"); }));
  normd.Signal(SIGTERM);
  EXPECT_EQ(normd.Wait(), 0);
  absl::StrAppend(&all, normd.output());
  EXPECT_THAT(all, HasSubstr("server.key' is readable by every user (mode 0644)"));
  EXPECT_THAT(all, HasSubstr("tokens' is writable by every user (mode 0666)"));
  EXPECT_THAT(all, HasSubstr("call refused method=norm.v1.ServerService/GetServerInfo "
                             "code=UNAUTHENTICATED"));
  for (const std::string secret : {kToken, kWrongToken}) EXPECT_THAT(all, Not(HasSubstr(secret)));
  for (absl::string_view line : absl::StrSplit(server_.key, '\n', absl::SkipEmpty())) {
    EXPECT_THAT(all, Not(HasSubstr(std::string(line))));
  }
}

TEST_F(NormdSecurityTest, AGroupOfProcessesSpeaksTls) {
  std::vector<std::string> flags = Tls();
  flags.push_back("--processes=2");
  flags.push_back(Flag("admin_tokens", "tokens"));
  NormdProcess normd(flags);
  ASSERT_TRUE(normd.AwaitReady()) << normd.output();
  const auto trusting = grpc::SslCredentials({authority_.certificate(), "", ""});
  // Connections are spread over the members by a hash: of many, each has some.
  for (int i = 0; i < 20; ++i) {
    auto stub = v1::NormalizationService::NewStub(normd.OpenChannel(trusting));
    EXPECT_TRUE(Canary(*stub).ok());
  }
  EXPECT_FALSE(Canary(*normd.Connect()).ok());
  const std::string info =
      "info --attempts 1 --server " + normd.Address("grpc") + " --tls-ca " + (folder_ / "ca.pem");
  EXPECT_THAT(NormctlError(info, 1), HasSubstr("UNAUTHENTICATED"));
  EXPECT_EQ(Normctl(info + " --token-file " + (folder_ / "tokens")).exit_code, 0);
  Put("server", authority_.IssueServer("next"));
  EXPECT_TRUE(Await([&] {
    for (int i = 0; i < 8; ++i) {
      if (ProbeTls(normd.Address("grpc")).common_name != "next") return false;
    }
    return true;
  }));
  NormdProcess bad({"--processes=2", Flag("tls_cert", "none"), Flag("tls_key", "server.key")});
  EXPECT_EQ(bad.Wait(), 1);
  EXPECT_THAT(bad.output(), HasSubstr("--tls_cert: '" + (folder_ / "none") + "' cannot be read"));
}

}  // namespace
}  // namespace norm::server
