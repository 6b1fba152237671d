// A server with certificates and lists of its own, and clients that fit it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "norm/client/client.h"
#include "server/security/security.h"
#include "tests/support/certificates.h"
#include "tests/support/cpu_server.h"
#include "tests/support/request_builder.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::test {

/// Files that servers and clients are given. Only what is put there is there.
class SecurityFiles {
 public:
  std::string operator/(const std::string& name) const { return folder_ / name; }

  /// Appears in one step, as careful operators have it.
  std::string Put(const std::string& name, const std::string& text) const {
    folder_.Write(name + ".new", text);
    std::filesystem::rename(folder_ / (name + ".new"), folder_ / name);
    return folder_ / name;
  }
  /// NAME.pem and NAME.key.
  void Put(const std::string& name, const Credential& credential) const {
    Put(name + ".pem", credential.certificate);
    Put(name + ".key", credential.key);
  }

 private:
  client::ScratchFolder folder_;
};

inline constexpr char kDataToken[] = "data-token-of-the-tests";
inline constexpr char kAdminToken[] = "admin-token-of-the-tests";
inline constexpr char kUnknownToken[] = "some-token-of-nobody";

/// An authority, a server certificate and what else a test puts there.
class SecureServerTest : public testing::Test {
 protected:
  SecureServerTest() {
    files_.Put("ca.pem", authority_.certificate());
    files_.Put("server", authority_.IssueServer());
  }

  /// TLS with server.pem, looked at often.
  server::SecurityOptions Tls() const {
    return {.tls_cert = files_ / "server.pem",
            .tls_key = files_ / "server.key",
            .look_interval = absl::Milliseconds(5)};
  }
  server::SecurityOptions MutualTls() const {
    server::SecurityOptions options = Tls();
    options.tls_client_ca = files_ / "ca.pem";
    return options;
  }
  void Start(const server::SecurityOptions& security) {
    InProcessServerOptions options;
    options.grpc.security = security;
    server_ = std::make_unique<CpuServer>(options);
  }
  /// With the host that certificates name, or by address.
  std::string Address(const std::string& host = "localhost") const {
    const std::string& address = server_->server.address();
    return host + address.substr(address.rfind(':'));
  }

  /// One try, trusting ca.pem.
  client::ClientOptions Trusting() const {
    client::ClientOptions options;
    options.retry.max_attempts = 1;
    options.tls = client::TlsOptions{.root_ca_file = files_ / "ca.pem"};
    return options;
  }
  /// Showing NAME.pem.
  client::ClientOptions Showing(const std::string& name) const {
    client::ClientOptions options = Trusting();
    options.tls->cert_file = files_ / (name + ".pem");
    options.tls->key_file = files_ / (name + ".key");
    return options;
  }
  static client::ClientOptions Plain() {
    client::ClientOptions options;
    options.retry.max_attempts = 1;
    return options;
  }

  /// OK when the canary's values come back.
  static absl::Status Canary(client::Client& client) {
    const std::vector<float> x = {1, 2, 3, 4};
    const std::vector<float> ones = {1, 1, 1, 1};
    absl::StatusOr<client::ForwardResult> result =
        client.RmsNorm({.x = client::TensorView::Of(absl::MakeConstSpan(x), {1, 4}),
                        .weight = client::TensorView::Of(absl::MakeConstSpan(ones), {4}),
                        .eps = 1e-6},
                       absl::Seconds(30));
    if (!result.ok()) return result.status();
    absl::StatusOr<client::Tensor> y = result->y.ToTensor();
    if (!y.ok()) return y.status();
    absl::StatusOr<absl::Span<const float>> values = y->Values<float>();
    if (!values.ok()) return values.status();
    for (size_t i = 0; i < values->size(); ++i) EXPECT_NEAR((*values)[i], CanaryValues()[i], 1e-6);
    return absl::OkStatus();
  }
  /// Of a new client; its error where there is none.
  absl::Status CanaryOf(const std::string& address, const client::ClientOptions& options) const {
    auto client = client::Client::Create(address, options);
    return client.ok() ? Canary(**client) : client.status();
  }

  const TestAuthority authority_{{.common_name = "authority"}};
  const SecurityFiles files_;
  std::unique_ptr<CpuServer> server_;
};

}  // namespace norm::test
