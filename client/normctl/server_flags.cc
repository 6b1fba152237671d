#include "client/normctl/server_flags.h"

#include <cstdlib>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace norm::normctl {
namespace {

absl::Duration ParseTimeout(const std::string& text) {
  absl::Duration timeout;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    timeout = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &timeout)) {
    throw CLI::ValidationError("--timeout",
                               absl::StrCat("'", text, "' is no duration, such as 30s or 500ms"));
  }
  if (timeout <= absl::ZeroDuration() || timeout > absl::Hours(24)) {
    throw CLI::ValidationError("--timeout", absl::StrCat("'", text, "' is outside (0, 24h]"));
  }
  return timeout;
}

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Of everything that one command asks. What the environment has in another form is not sent.
client::CallIdentity Identity(const std::string& traceparent) {
  client::CallIdentity identity{.traceparent = traceparent, .request_id = client::NewRequestId()};
  if (traceparent.empty()) {
    identity.traceparent = Variable("TRACEPARENT");
    identity.tracestate = Variable("TRACESTATE");
  }
  return identity;
}

}  // namespace

void ServerFlags::AddConnectionTo(CLI::App* command) {
  command
      ->add_option("--server", server,
                   "Address of normd, host:port; replicas: several joined by commas, or "
                   "dns:///name:port for all addresses of a name")
      ->capture_default_str()
      ->check(CLI::Validator(
          [](const std::string& address) {
            return std::string(client::CheckAddress(address).message());
          },
          "", "ADDRESS"));
  command->add_option_function<std::string>(
      "--timeout", [this](const std::string& text) { timeout = ParseTimeout(text); },
      "Time a call may take, retries included: 30s, 500ms, or seconds [60s]");
  AddSecurityTo(command);
}

void ServerFlags::AddSecurityTo(CLI::App* command) {
  command
      ->add_flag("--tls", use_tls_,
                 "Encrypt, and trust the system's authorities; every other --tls flag says it too")
      ->envname("NORMD_TLS");
  command->add_option("--tls-ca", tls_.root_ca_file, "PEM file of the authorities to trust instead")
      ->envname("NORMD_TLS_CA");
  CLI::Option* const cert =
      command->add_option("--tls-cert", tls_.cert_file, "PEM file with this client's certificate")
          ->envname("NORMD_TLS_CERT");
  CLI::Option* const key = command->add_option("--tls-key", tls_.key_file, "PEM file with its key")
                               ->envname("NORMD_TLS_KEY");
  cert->needs(key);
  key->needs(cert);
  command
      ->add_option("--tls-name", tls_.server_name,
                   "Name that the server's certificate must have, instead of the host of --server")
      ->envname("NORMD_TLS_NAME");
  command
      ->add_option("--token-file", token_file_,
                   "File with a bearer token; sent unencrypted to this machine alone")
      ->envname("NORMD_TOKEN_FILE");
}

client::ClientOptions ServerFlags::Options() const {
  client::ClientOptions options;
  if (use_tls_ || !tls_.root_ca_file.empty() || !tls_.cert_file.empty() || !tls_.key_file.empty() ||
      !tls_.server_name.empty()) {
    options.tls = tls_;
  }
  options.token_file = token_file_;
  return options;
}

void ServerFlags::AddTo(CLI::App* command) {
  AddConnectionTo(command);
  command
      ->add_option("--traceparent", traceparent_,
                   "W3C trace context that the server's spans of this command belong to "
                   "[TRACEPARENT and TRACESTATE of the environment]")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return std::string(client::CheckIdentity({.traceparent = text}).message());
          },
          "", "TRACEPARENT"));
  command->add_option("--attempts", attempts, "Tries of a call that ends in UNAVAILABLE")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  command->add_flag_callback(
      "--json", [this] { format = OutputFormat::kJson; }, "Print one JSON object on stdout");
}

absl::StatusOr<std::unique_ptr<client::Client>> ServerFlags::Connect(
    const client::ChunkOptions& chunks) const {
  client::ClientOptions options = Options();
  options.chunks = chunks;
  options.retry.max_attempts = attempts;
  options.identify = [identity = Identity(traceparent_)] { return identity; };
  return client::Client::Create(server, options);
}

}  // namespace norm::normctl
