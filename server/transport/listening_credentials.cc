// Over gRPC's C interface: its C++ one has no way to change certificates that have been checked first
// (FileWatcherCertificateProvider hands over whatever the files hold), and none to look at the metadata
// of calls on a plaintext port. server/transport/DECISIONS.md tells the alternatives.
#include "server/transport/listening_credentials.h"

#include <mutex>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "grpc/grpc_security.h"
#include "grpc/slice.h"
#include "proto/credentials/bearer_token.h"

namespace norm::server {
namespace {

absl::string_view Text(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

absl::string_view Text(const grpc_auth_property& property) {
  return {property.value, property.value_length};
}

/// Names of the verified certificate; those of a connection without one are none.
void AddNames(const grpc_auth_context* connection, const char* property, Caller* caller) {
  grpc_auth_property_iterator names =
      grpc_auth_context_find_properties_by_name(connection, property);
  while (const grpc_auth_property* name = grpc_auth_property_iterator_next(&names)) {
    caller->has_certificate = true;
    caller->certificate_names.push_back(Text(*name));
  }
}

/// grpc_auth_metadata_processor::process: answers on the calling thread.
void CheckCall(void* state, grpc_auth_context* connection, const grpc_metadata* metadata,
               size_t count, grpc_process_auth_metadata_done_cb done, void* user_data) {
  absl::string_view path;
  Caller caller;
  IdentityHeaders headers;
  for (size_t i = 0; i < count; ++i) {
    const absl::string_view key = Text(metadata[i].key);
    if (key == ":path") path = Text(metadata[i].value);
    headers.Add(key, Text(metadata[i].value));
    if (key != credentials::kAuthorization) continue;
    // One of several could be another's: none counts.
    caller.authorization = caller.authorization.has_value() ? "" : Text(metadata[i].value);
  }
  AddNames(connection, GRPC_X509_CN_PROPERTY_NAME, &caller);
  AddNames(connection, GRPC_X509_SAN_PROPERTY_NAME, &caller);
  const absl::Status status = static_cast<AccessControl*>(state)->Check(path, caller, headers);
  // absl::StatusCode and grpc_status_code share their numbers.
  done(user_data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.code()),
       std::string(status.message()).c_str());
}

class Credentials final : public grpc::ServerCredentials {
 public:
  explicit Credentials(AccessControl& access) : access_(access) {}

  /// The policy is that of the constructor.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    grpc_server_credentials* const credentials =
        access_.security().tls_files()->own.private_key.empty()
            ? grpc_insecure_server_credentials_create()
            : grpc_ssl_server_credentials_create_with_options(
                  grpc_ssl_server_credentials_create_options_using_config_fetcher(
                      access_.security().wants_client_certificates()
                          ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                          : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                      Fetch, this));
    if (access_.security().restricts()) {
      grpc_server_credentials_set_auth_metadata_processor(credentials,
                                                          {CheckCall, nullptr, &access_});
    }
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  /// Called before each handshake, and once when the port is added.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<Credentials*>(self)->FetchNew(config);
  }

  grpc_ssl_certificate_config_reload_status FetchNew(grpc_ssl_server_certificate_config** config) {
    std::shared_ptr<const TlsFiles> files = access_.security().tls_files();
    const std::lock_guard lock(mutex_);
    if (files == in_force_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {files->own.private_key.c_str(),
                                             files->own.certificate_chain.c_str()};
    // gRPC 1.51 insists on authorities here. Where no client is asked for a certificate, nothing is
    // held against them.
    const std::string& authorities =
        files->client_ca.empty() ? files->own.certificate_chain : files->client_ca;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    in_force_ = std::move(files);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  AccessControl& access_;
  std::mutex mutex_;
  std::shared_ptr<const TlsFiles> in_force_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ListeningCredentials(AccessControl& access) {
  return std::make_shared<Credentials>(access);
}

}  // namespace norm::server
