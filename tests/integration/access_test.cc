// Who may call what: tokens, names of client certificates, and what is refused how.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "prometheus/text_serializer.h"
#include "server/observability/metrics_impl.h"
#include "tests/integration/await.h"
#include "tests/integration/callers.h"
#include "tests/integration/secure_server.h"

namespace norm::server {
namespace {

using client::Client;
using norm::test::Await;
using norm::test::Callers;
using norm::test::kAdminToken;
using norm::test::kDataToken;
using norm::test::kUnknownToken;
using norm::test::SecureServerTest;
using testing::HasSubstr;
using testing::Not;

constexpr char kBothToken[] = "token-for-both-of-them";

constexpr auto kOk = grpc::StatusCode::OK;
constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
constexpr auto kUnimplemented = grpc::StatusCode::UNIMPLEMENTED;
constexpr auto kUnauthenticated = grpc::StatusCode::UNAUTHENTICATED;
constexpr auto kDenied = grpc::StatusCode::PERMISSION_DENIED;

enum class Part { kData, kAdmin, kOpen };

struct Method {
  const char* path;
  Part part;
  grpc::StatusCode answer;  // to an empty message of somebody who may call it
};

constexpr Method kMethods[] = {
    {"/norm.v1.NormalizationService/Normalize", Part::kData, kInvalid},
    {"/norm.v1.NormalizationService/NormalizeBackward", Part::kData, kInvalid},
    {"/norm.v1.NormalizationService/NoSuchMethod", Part::kData, kUnimplemented},
    {"/norm.v1.ServerService/GetServerInfo", Part::kAdmin, kOk},
    {"/norm.v1.ServerService/GetStatistics", Part::kAdmin, kOk},
    {"/norm.v1.EchoService/Echo", Part::kAdmin, kOk},
    {"/norm.v1.EchoService/EchoStream", Part::kAdmin, kOk},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Part::kAdmin, kOk},
    {"/norm.v1.NoSuchService/NoSuchMethod", Part::kAdmin, kUnimplemented},
    {"/norm.v1.NormalizationServiceOfAnother/Normalize", Part::kAdmin, kUnimplemented},
    {"/grpc.health.v1.Health/Check", Part::kOpen, kOk},
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

Metadata Bearer(const std::string& token) { return {{"authorization", "Bearer " + token}}; }

/// One call with `message`.
grpc::Status CallMethod(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                        const Metadata& metadata, const std::string& message = "") {
  grpc::ClientContext context;
  for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
  const grpc::Slice slice(message);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  auto call = stub.PrepareUnaryCall(&context, path, request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, &queue);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

class AccessTest : public SecureServerTest {
 protected:
  /// What each method answers to a caller for whom data and admin services are `data` and `admin`.
  void ExpectAccess(const std::shared_ptr<grpc::Channel>& channel, const Metadata& metadata,
                    grpc::StatusCode data, grpc::StatusCode admin) {
    for (const Method& method : kMethods) {
      const std::map<Part, grpc::StatusCode> expected = {
          {Part::kData, data}, {Part::kAdmin, admin}, {Part::kOpen, kOk}};
      const grpc::StatusCode access = expected.at(method.part);
      const grpc::Status status = CallMethod(channel, method.path, metadata);
      EXPECT_EQ(status.error_code(), access == kOk ? method.answer : access)
          << method.path << ": " << status.error_message();
      EXPECT_THAT(status.error_message(), Not(HasSubstr(kUnknownToken)));
    }
  }

  SecurityOptions Tokens() const {
    SecurityOptions options{.look_interval = absl::Milliseconds(5)};
    options.data_tokens =
        files_.Put("data", absl::StrCat("# readers\n", kDataToken, "\n", kBothToken, "\n"));
    options.admin_tokens = files_.Put("admin", absl::StrCat(kAdminToken, "\r\n\n", kBothToken));
    return options;
  }
  std::string Scrape() const {
    return prometheus::TextSerializer().Serialize(server_->metrics.impl()->Collect());
  }
};

TEST_F(AccessTest, EveryMethodAsksForItsToken) {
  Start(Tokens());
  const auto channel = server_->server.Connect();
  ExpectAccess(channel, Bearer(kDataToken), kOk, kDenied);
  ExpectAccess(channel, Bearer(kAdminToken), kDenied, kOk);
  ExpectAccess(channel, Bearer(kBothToken), kOk, kOk);
  ExpectAccess(channel, {{"authorization", absl::StrCat("bearer ", kBothToken)}}, kOk, kOk);
  const std::string longer = absl::StrCat(kBothToken, "a");
  const std::string shorter(kBothToken, sizeof(kBothToken) - 2);
  for (const Metadata& nobody :
       {Metadata(), Bearer(kUnknownToken), Bearer(longer), Bearer(shorter), Bearer(""),
        Metadata{{"authorization", kBothToken}},
        Metadata{{"authorization", absl::StrCat("Basic ", kBothToken)}},
        Metadata{{"authorization", absl::StrCat("Bearer ", kBothToken)},
                 {"authorization", absl::StrCat("Bearer ", kUnknownToken)}}}) {
    ExpectAccess(channel, nobody, kUnauthenticated, kUnauthenticated);
  }
}

TEST_F(AccessTest, WithoutListsEverythingIsOpen) {
  Start({});
  ExpectAccess(server_->server.Connect(), {}, kOk, kOk);
  ExpectAccess(server_->server.Connect(), Bearer(kUnknownToken), kOk, kOk);
}

TEST_F(AccessTest, AListForDataAloneClosesAdmin) {
  SecurityOptions options = Tokens();
  options.admin_tokens.clear();
  Start(options);
  ExpectAccess(server_->server.Connect(), Bearer(kDataToken), kOk, kDenied);
  ExpectAccess(server_->server.Connect(), {}, kUnauthenticated, kUnauthenticated);
}

TEST_F(AccessTest, AListForAdminAloneLeavesDataOpen) {
  SecurityOptions options = Tokens();
  options.data_tokens.clear();
  Start(options);
  ExpectAccess(server_->server.Connect(), {}, kOk, kUnauthenticated);
  ExpectAccess(server_->server.Connect(), Bearer(kAdminToken), kOk, kOk);
}

TEST_F(AccessTest, NamesOfCertificatesCountLikeTokens) {
  SecurityOptions options = MutualTls();
  options.data_clients =
      files_.Put("data", "# by common name, by URI\nreader\nspiffe://x/writer\n");
  options.admin_clients = files_.Put("admin", "operator.example\n");
  options.admin_tokens = files_.Put("tokens", absl::StrCat(kAdminToken, "\n"));
  Start(options);
  const auto channel = [this](const test::Subject& subject) {
    const test::Credential own = authority_.Issue(subject);
    return grpc::CreateChannel(
        Address(), grpc::SslCredentials({authority_.certificate(), own.key, own.certificate}));
  };
  const auto reader = channel({.common_name = "reader"});
  ExpectAccess(reader, {}, kOk, kDenied);
  ExpectAccess(reader, Bearer(kAdminToken), kOk, kOk);
  ExpectAccess(channel({.common_name = "x", .names = {"URI:spiffe://x/writer"}}), {}, kOk, kDenied);
  ExpectAccess(channel({.common_name = "x", .names = {"DNS:operator.example"}}), {}, kDenied, kOk);
  ExpectAccess(channel({.common_name = "Reader"}), {}, kDenied, kDenied);
  ExpectAccess(channel({.common_name = "stranger"}), Bearer(kUnknownToken), kUnauthenticated,
               kUnauthenticated);
}

TEST_F(AccessTest, ANameThatIsTakenOffTheListIsRefusedOnItsOpenConnection) {
  SecurityOptions options = MutualTls();
  files_.Put("friend", authority_.Issue({.common_name = "friend"}));
  options.data_clients = files_.Put("data", "friend\nother\n");
  Start(options);
  auto client = Client::Create(Address(), Showing("friend"));
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(Canary(**client), absl::OkStatus());
  files_.Put("data", "other\n");
  EXPECT_TRUE(
      Await([&] { return Canary(**client).code() == absl::StatusCode::kPermissionDenied; }));
  EXPECT_THAT(std::string(Canary(**client).message()),
              HasSubstr("client certificate 'friend' does not give access to data services"));
  files_.Put("data", "friend\n");
  EXPECT_TRUE(Await([&] { return Canary(**client).ok(); }));
}

TEST_F(AccessTest, TokensAreReplacedAndNoCallIsLost) {
  const std::string next = "the-token-that-comes-next";
  SecurityOptions options = Tls();
  options.data_tokens = files_.Put("data", absl::StrCat(kDataToken, "\n"));
  Start(options);
  client::ClientOptions caller = Trusting();
  caller.token_file = files_.Put("token", absl::StrCat(kDataToken, "\n"));
  client::ClientOptions with_next = Trusting();
  with_next.token = next;
  client::ClientOptions with_first = Trusting();
  with_first.token = kDataToken;
  Callers callers(Address(), caller, [](Client& client) { return Canary(client); });
  ASSERT_TRUE(callers.AwaitMore(2));
  files_.Put("data", absl::StrCat(kDataToken, "\n", next, "\n"));
  EXPECT_TRUE(Await([&] { return CanaryOf(Address(), with_next).ok(); }));
  files_.Put("token", next);
  ASSERT_TRUE(callers.AwaitMore(2));
  files_.Put("data", absl::StrCat(next, "\n"));
  EXPECT_TRUE(Await([&] {
    return CanaryOf(Address(), with_first).code() == absl::StatusCode::kUnauthenticated;
  }));
  ASSERT_TRUE(callers.AwaitMore(2));
}

TEST_F(AccessTest, AStreamAndRowsCarryTheToken) {
  SecurityOptions options = Tokens();
  Start(options);
  client::ClientOptions caller = Plain();
  caller.token = kDataToken;
  caller.chunks.above_bytes = 0;
  EXPECT_EQ(CanaryOf(Address("127.0.0.1"), caller), absl::OkStatus());
  EXPECT_EQ(CanaryOf(Address(), caller), absl::OkStatus());
  caller.token = kUnknownToken;
  EXPECT_EQ(CanaryOf(Address(), caller).code(), absl::StatusCode::kUnauthenticated);
  caller.token = kAdminToken;
  EXPECT_EQ(CanaryOf(Address(), caller),
            absl::PermissionDeniedError(
                "authorization: the token does not give access to data services"));
  // The answer does not depend on whether the stream has ended by the time of the request.
  auto refused = Client::Create(Address(), caller);
  ASSERT_TRUE(refused.ok());
  auto ended = (*refused)->OpenStream();
  ASSERT_TRUE(Await([&] { return !ended->status().ok(); }));
  EXPECT_EQ(ended->status().code(), absl::StatusCode::kPermissionDenied);
  const std::vector<float> x = {1, 2};
  EXPECT_EQ(ended
                ->Normalize(client::RmsNormRequest{.x = client::TensorView::Of(
                                                       absl::MakeConstSpan(x), {1, 2})},
                            absl::Seconds(30))
                .get()
                .status()
                .code(),
            absl::StatusCode::kPermissionDenied);
  auto client = Client::Create(Address(), caller);
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE((*client)->GetServerInfo(absl::Seconds(30)).ok());
  auto stream = (*client)->OpenEchoStream();
  EXPECT_EQ(stream->Echo(client::EncodedRequest(), 0, absl::Seconds(30)), absl::OkStatus());
}

TEST_F(AccessTest, ALargeMessageOfNobodyIsRefusedByItsHeaders) {
  Start(Tokens());
  const auto channel = server_->server.Connect();
  const std::string message(64 << 20, '\x7f');
  EXPECT_EQ(CallMethod(channel, kMethods[0].path, {}, message).error_code(), kUnauthenticated);
  const std::string metrics = Scrape();
  EXPECT_THAT(metrics, HasSubstr("normd_rejected_total{reason=\"unauthenticated\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("normd_rejected_total{reason=\"permission_denied\"} 0"));
  // It never came to a decoder, which would have found it malformed.
  EXPECT_THAT(metrics, HasSubstr("normd_rejected_total{reason=\"invalid\"} 0"));
  EXPECT_EQ(CallMethod(channel, kMethods[3].path, Bearer(kDataToken)).error_code(), kDenied);
  EXPECT_THAT(Scrape(), HasSubstr("normd_rejected_total{reason=\"permission_denied\"} 1"));
}

TEST_F(AccessTest, ATokenNeverLeavesTheMachineUnencrypted) {
  client::ClientOptions options = Plain();
  options.token = kDataToken;
  for (const char* address :
       {"192.0.2.1:8470", "normd.example:8470", "dns:///normd:8470", "127.0.0.1.example:8470",
        "localhost.example:8470", "[::2]:8470", "ipv4:127.0.0.1:1,192.0.2.1:1",
        "127.0.0.1:8470,192.0.2.1:8470", "unix:/run/normd.sock,192.0.2.1:8470"}) {
    const auto client = Client::Create(address, options);
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(client.status().message()), HasSubstr("would travel unencrypted to"));
    EXPECT_THAT(std::string(client.status().message()), Not(HasSubstr(kDataToken)));
  }
  for (const char* address : {"127.0.0.1:8470", "127.9.9.9:8470", "localhost:8470", "[::1]:8470",
                              "dns:///localhost:8470", "ipv4:127.0.0.1:1,127.0.0.2:2",
                              "unix:/run/normd.sock", "127.0.0.1:8470,unix:/run/normd.sock"}) {
    EXPECT_TRUE(Client::Create(address, options).ok()) << address;
  }
  options.tls.emplace();
  EXPECT_TRUE(Client::Create("192.0.2.1:8470", options).ok());
}

TEST_F(AccessTest, AClientNamesWhatIsWrongWithItsToken) {
  const auto error = [](const std::string& token, const std::string& file) {
    client::ClientOptions options = Plain();
    options.token = token;
    options.token_file = file;
    const auto client = Client::Create("127.0.0.1:1", options);
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(client.status().message()), Not(HasSubstr("secret")));
    return std::string(client.status().message());
  };
  EXPECT_THAT(error("secret", ""), HasSubstr("token: has 6 characters, fewer than 16"));
  EXPECT_THAT(error("secret-secret\nsecret", ""), HasSubstr("as character 14"));
  EXPECT_THAT(error("secret-secret-secret", files_.Put("t", "x")), HasSubstr("exclude each other"));
  EXPECT_THAT(error("", files_ / "none"), HasSubstr("cannot be read: No such file"));
  EXPECT_THAT(error("", files_.Put("t", "")), HasSubstr("holds no token"));
  EXPECT_THAT(error("", files_.Put("t", "# a comment alone\n\n")), HasSubstr("holds no token"));
  EXPECT_THAT(error("", files_.Put("t", "secret-secret-secret\nsecret-secret-secret\n")),
              HasSubstr("holds 2 tokens, one is needed"));
  EXPECT_THAT(error("", files_.Put("t", "secret-secret secret")),
              HasSubstr("line 1: the token has something else"));
}

}  // namespace
}  // namespace norm::server
