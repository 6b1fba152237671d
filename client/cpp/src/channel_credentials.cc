#include "channel_credentials.h"

#include <map>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "proto/credentials/bearer_token.h"
#include "proto/credentials/pem_files.h"

namespace norm::client {
namespace {

using credentials::NamedFile;

/// Adds the token to each call. One from a file is read again when the file has changed; one that
/// is unusable meanwhile leaves the token that was read before, and is read again at the next call.
class TokenPlugin final : public grpc::MetadataCredentialsPlugin {
 public:
  /// `stamp`: taken before the token was read from the file.
  TokenPlugin(std::string token, const NamedFile& file, const credentials::FileStamp& stamp)
      : file_(file), stamp_(stamp), token_(std::move(token)) {}

  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace(credentials::kAuthorization, absl::StrCat(credentials::kBearer, Current()));
    return grpc::Status::OK;
  }
  bool IsBlocking() const override { return false; }
  const char* GetType() const override { return "bearer token"; }
  grpc::string DebugString() override { return GetType(); }

 private:
  std::string Current() {
    const std::lock_guard lock(mutex_);
    if (file_.path.empty()) return token_;
    const credentials::FileStamp now = credentials::StampOf(file_.path);
    if (now == stamp_) return token_;
    if (absl::StatusOr<std::string> read = credentials::ReadToken(file_); read.ok()) {
      stamp_ = now;
      token_ = *std::move(read);
    }
    return token_;
  }

  const NamedFile file_;
  std::mutex mutex_;
  credentials::FileStamp stamp_ ABSL_GUARDED_BY(mutex_);
  std::string token_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeTls(const TlsOptions& options) {
  grpc::SslCredentialsOptions ssl;
  const absl::Time now = absl::Now();
  if (!options.root_ca_file.empty()) {
    absl::StatusOr<std::string> roots =
        credentials::ReadAuthorities({"tls.root_ca_file", options.root_ca_file}, now);
    if (!roots.ok()) return roots.status();
    ssl.pem_root_certs = *std::move(roots);
  }
  if (options.cert_file.empty() != options.key_file.empty()) {
    return absl::InvalidArgumentError("tls: cert_file and key_file are needed together");
  }
  if (!options.cert_file.empty()) {
    absl::StatusOr<credentials::KeyPair> own = credentials::ReadKeyPair(
        {"tls.cert_file", options.cert_file}, {"tls.key_file", options.key_file}, now);
    if (!own.ok()) return own.status();
    ssl.pem_cert_chain = std::move(own->certificate_chain);
    ssl.pem_private_key = std::move(own->private_key);
  }
  return grpc::SslCredentials(ssl);
}

bool IsLoopbackHost(absl::string_view host) {
  if (host == "localhost" || host == "[::1]") return true;
  // Only as digits: a name may begin with 127. too.
  return absl::StartsWith(host, "127.") &&
         host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

}  // namespace

bool IsOnThisMachine(const std::string& target) {
  absl::string_view rest = target;
  if (absl::StartsWith(rest, "unix:") || absl::StartsWith(rest, "unix-abstract:")) return true;
  for (absl::string_view scheme : {"dns:///", "dns:", "ipv4:", "ipv6:"}) {
    if (absl::ConsumePrefix(&rest, scheme)) break;
  }
  for (absl::string_view one : absl::StrSplit(rest, ',')) {
    if (!IsLoopbackHost(one.substr(0, one.rfind(':')))) return false;
  }
  return true;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const std::string& target, const ClientOptions& options) {
  const bool has_token = !options.token.empty() || !options.token_file.empty();
  std::shared_ptr<grpc::ChannelCredentials> channel;
  if (options.tls.has_value()) {
    auto tls = MakeTls(*options.tls);
    if (!tls.ok()) return tls.status();
    channel = *std::move(tls);
  }
  if (!has_token) return channel != nullptr ? channel : grpc::InsecureChannelCredentials();

  if (!options.token.empty() && !options.token_file.empty()) {
    return absl::InvalidArgumentError("token and token_file exclude each other");
  }
  const NamedFile file{"token_file", options.token_file};
  const credentials::FileStamp stamp = credentials::StampOf(file.path);
  std::string token = options.token;
  if (token.empty()) {
    absl::StatusOr<std::string> read = credentials::ReadToken(file);
    if (!read.ok()) return read.status();
    token = *std::move(read);
  } else if (const std::string mistake = credentials::FindTokenMistake(token); !mistake.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("token: ", mistake));
  }
  if (channel == nullptr) {
    if (!IsOnThisMachine(target)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the token would travel unencrypted to '", target,
                       "': TLS is needed for an address beyond this machine"));
    }
    channel =
        grpc::experimental::LocalCredentials(absl::StartsWith(target, "unix") ? UDS : LOCAL_TCP);
  }
  return grpc::CompositeChannelCredentials(
      channel,
      grpc::experimental::MetadataCredentialsFromPlugin(
          std::make_unique<TokenPlugin>(std::move(token), file, stamp), GRPC_SECURITY_NONE));
}

}  // namespace norm::client
