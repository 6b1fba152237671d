// Encrypted connections: who trusts whom, what a mistake of either end says, certificates that are
// replaced while calls go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "tests/integration/await.h"
#include "tests/integration/callers.h"
#include "tests/integration/secure_server.h"

namespace norm::server {
namespace {

using client::Client;
using norm::test::Await;
using norm::test::Callers;
using norm::test::Credential;
using norm::test::ProbeTls;
using norm::test::SecureServerTest;
using norm::test::Subject;
using norm::test::TestAuthority;
using norm::test::TlsVersion;
using testing::AllOf;
using testing::HasSubstr;

class TlsTest : public SecureServerTest {
 protected:
  /// A connection could not be made, for a reason that says `text`.
  static void ExpectUnreachable(const absl::Status& status, const std::string& text) {
    EXPECT_TRUE(client::IsServerUnreachable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  static absl::Status OneRow(client::NormalizeStream& stream) {
    const std::vector<float> x = {1, 2, 3, 4};
    const client::RmsNormRequest request{
        .x = client::TensorView::Of(absl::MakeConstSpan(x), {1, 4})};
    return stream.Normalize(request, absl::Seconds(30)).get().status();
  }
};

TEST_F(TlsTest, CarriesEveryKindOfCall) {
  Start(Tls());
  auto client = Client::Create(Address(), Trusting());
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(Canary(**client), absl::OkStatus());
  EXPECT_EQ((*client)->GetServerInfo(absl::Seconds(30))->version, "0.0.0-test");
  EXPECT_EQ((*client)->CheckHealth("", absl::Seconds(30)).value(), client::Health::kServing);
  // Rows over a stream, larger than a TLS record and a chunk.
  client::ClientOptions in_rows = Trusting();
  in_rows.chunks = {.above_bytes = 0, .chunk_bytes = 1 << 18};
  auto rows_client = Client::Create(Address(), in_rows);
  ASSERT_TRUE(rows_client.ok());
  std::vector<float> x(256 * 4096);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) - 48.0F;
  const client::RmsNormRequest request{
      .x = client::TensorView::Of(absl::MakeConstSpan(x), {256, 4096})};
  auto whole = (*client)->RmsNorm(request, absl::Seconds(60));
  auto rows = (*rows_client)->RmsNorm(request, absl::Seconds(60));
  ASSERT_TRUE(whole.ok() && rows.ok()) << whole.status() << rows.status();
  auto whole_y = whole->y.ToTensor();
  auto rows_y = rows->y.ToTensor();
  ASSERT_TRUE(whole_y.ok() && rows_y.ok());
  EXPECT_EQ(*whole_y->Values<float>(), *rows_y->Values<float>());
}

TEST_F(TlsTest, TakesVersionsFromOneTwoOn) {
  Start(Tls());
  EXPECT_FALSE(ProbeTls(Address(), TlsVersion::k1_1).connected);
  EXPECT_TRUE(ProbeTls(Address(), TlsVersion::k1_2).connected);
  EXPECT_TRUE(ProbeTls(Address(), TlsVersion::k1_3).connected);
}

TEST_F(TlsTest, TellsPlaintextFromTlsWhicheverEndIsWrong) {
  Start(Tls());
  ExpectUnreachable(CanaryOf(Address(), Plain()), "take nothing but TLS");
  Start({});
  ExpectUnreachable(CanaryOf(Address(), Trusting()), "does not speak TLS");
}

TEST_F(TlsTest, TrustsOnlyTheAuthorityAndTheNameGiven) {
  Start(Tls());
  const TestAuthority stranger({.common_name = "stranger"});
  client::ClientOptions options = Trusting();
  options.tls->root_ca_file = files_.Put("stranger.pem", stranger.certificate());
  ExpectUnreachable(CanaryOf(Address(), options), "does not lead to the authorities");
  options.tls->root_ca_file.clear();  // those of the system
  ExpectUnreachable(CanaryOf(Address(), options), "does not lead to the authorities");

  files_.Put("server", authority_.Issue({.common_name = "other", .names = {"DNS:other.example"}}));
  Start(Tls());
  ExpectUnreachable(CanaryOf(Address(), Trusting()),
                    "the server's certificate is for another name");
  options = Trusting();
  options.tls->server_name = "other.example";
  EXPECT_EQ(CanaryOf(Address(), options), absl::OkStatus());
}

TEST_F(TlsTest, AsksClientsForACertificateOfItsAuthority) {
  const TestAuthority stranger({.common_name = "stranger"});
  files_.Put("friend", authority_.Issue({.common_name = "friend"}));
  files_.Put("foe", stranger.Issue({.common_name = "foe"}));
  Start(MutualTls());
  EXPECT_EQ(CanaryOf(Address(), Showing("friend")), absl::OkStatus());
  ExpectUnreachable(CanaryOf(Address(), Trusting()), "want a client certificate");
  ExpectUnreachable(CanaryOf(Address(), Showing("foe")), "want a client certificate");
}

TEST_F(TlsTest, TakesNoExpiredCertificateOfAClient) {
  const Credential expired =
      authority_.Issue({.common_name = "late", .not_after = absl::Now() - absl::Minutes(1)});
  Start(MutualTls());
  // The client of this project would not even try.
  grpc::SslCredentialsOptions ssl{authority_.certificate(), expired.key, expired.certificate};
  auto stub =
      v1::NormalizationService::NewStub(grpc::CreateChannel(Address(), grpc::SslCredentials(ssl)));
  grpc::ClientContext context;
  v1::NormalizeResponse response;
  EXPECT_EQ(stub->Normalize(&context, test::CanaryRequest(), &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  const Credential valid = authority_.Issue({.common_name = "in time"});
  ssl = {authority_.certificate(), valid.key, valid.certificate};
  auto other =
      v1::NormalizationService::NewStub(grpc::CreateChannel(Address(), grpc::SslCredentials(ssl)));
  grpc::ClientContext second;
  EXPECT_TRUE(other->Normalize(&second, test::CanaryRequest(), &response).ok());
}

TEST_F(TlsTest, AClientNamesWhatIsWrongWithItsFiles) {
  files_.Put("friend", authority_.Issue({.common_name = "friend"}));
  files_.Put("late", authority_.Issue(
                         {.common_name = "late", .not_after = absl::Now() - absl::Minutes(1)}));
  const auto error = [this](client::TlsOptions tls) {
    const auto client = Client::Create("localhost:1", {.tls = std::move(tls)});
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(client.status().message());
  };
  const std::string ca = files_ / "ca.pem";
  const std::string cert = files_ / "friend.pem";
  const std::string key = files_ / "friend.key";
  EXPECT_THAT(error({.root_ca_file = files_ / "none"}),
              HasSubstr("tls.root_ca_file: '" + (files_ / "none") + "' cannot be read: No such"));
  EXPECT_THAT(error({.root_ca_file = key}), HasSubstr("holds no PEM certificate"));
  EXPECT_THAT(error({.cert_file = cert}), HasSubstr("needed together"));
  EXPECT_THAT(error({.cert_file = cert, .key_file = files_ / "server.key"}),
              HasSubstr("is not the key of the certificate in '" + cert + "'"));
  EXPECT_THAT(error({.cert_file = files_ / "late.pem", .key_file = files_ / "late.key"}),
              AllOf(HasSubstr("late.pem' expired at "), HasSubstr(", it is ")));
}

TEST_F(TlsTest, CertificatesAreReplacedAndNoCallIsLost) {
  Start(Tls());
  Callers callers(Address(), Trusting(), [](Client& client) { return Canary(client); });
  ASSERT_TRUE(callers.AwaitMore(2));
  for (const std::string name : {"second", "third", "fourth"}) {
    files_.Put("server", authority_.IssueServer(name));
    EXPECT_TRUE(Await([&] { return ProbeTls(Address()).common_name == name; })) << name;
    EXPECT_TRUE(callers.AwaitMore(2));
  }
}

TEST_F(TlsTest, AnotherClientAuthorityCountsForNewConnections) {
  const TestAuthority second({.common_name = "second authority"});
  files_.Put("old", authority_.Issue({.common_name = "client"}));
  files_.Put("new", second.Issue({.common_name = "client"}));
  server::SecurityOptions options = MutualTls();
  options.tls_client_ca = files_.Put("clients.pem", authority_.certificate());
  Start(options);
  EXPECT_EQ(CanaryOf(Address(), Showing("old")), absl::OkStatus());
  EXPECT_FALSE(CanaryOf(Address(), Showing("new")).ok());
  files_.Put("clients.pem", authority_.certificate() + second.certificate());
  EXPECT_TRUE(Await([&] { return CanaryOf(Address(), Showing("new")).ok(); }));
  EXPECT_EQ(CanaryOf(Address(), Showing("old")), absl::OkStatus());
  files_.Put("clients.pem", second.certificate());
  EXPECT_TRUE(Await([&] { return !CanaryOf(Address(), Showing("old")).ok(); }));
  EXPECT_EQ(CanaryOf(Address(), Showing("new")), absl::OkStatus());
}

TEST_F(TlsTest, AClientShowsTheCertificateThatItsFilesHoldNow) {
  files_.Put("own", authority_.Issue({.common_name = "first"}));
  files_.Put("names", "second\n");
  SecurityOptions security = MutualTls();
  security.data_clients = files_ / "names";
  Start(security);
  auto client = Client::Create(Address(), Showing("own"));
  ASSERT_TRUE(client.ok()) << client.status();
  const auto refused = [&client] {
    const absl::Status status = Canary(**client);
    return absl::IsPermissionDenied(status) &&
           status.message().find("client certificate 'first'") != std::string::npos;
  };
  EXPECT_TRUE(refused());
  // The certificate before its key: what was read before stays.
  const Credential second = authority_.Issue({.common_name = "second"});
  files_.Put("own.pem", second.certificate);
  const absl::Time looked = absl::Now() + absl::Seconds(2);
  EXPECT_TRUE(Await([&] {
    EXPECT_TRUE(refused());
    return absl::Now() > looked;
  }));
  files_.Put("own.key", second.key);
  absl::Status status;
  EXPECT_TRUE(Await([&] {
    status = Canary(**client);
    return !absl::IsPermissionDenied(status);
  }));
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(OneRow(*(*client)->OpenStream()), absl::OkStatus());
}

TEST_F(TlsTest, AClientFollowsTheAuthorityThatItTrusts) {
  const TestAuthority stranger({.common_name = "stranger"});
  Start(Tls());
  auto client = Client::Create(Address(), Trusting());
  ASSERT_TRUE(client.ok()) << client.status();
  const auto stream = (*client)->OpenStream();
  EXPECT_EQ(OneRow(*stream), absl::OkStatus());
  files_.Put("ca.pem", stranger.certificate());
  absl::Status status;
  EXPECT_TRUE(Await([&] { return !(status = Canary(**client)).ok(); }));
  ExpectUnreachable(status, "does not lead to the authorities");
  EXPECT_EQ(OneRow(*stream), absl::OkStatus());  // over the connection that it began on
  files_.Put("ca.pem", stranger.certificate() + authority_.certificate());
  EXPECT_TRUE(Await([&] { return Canary(**client).ok(); }));
}

}  // namespace
}  // namespace norm::server
