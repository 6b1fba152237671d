#include "server/security/security.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/credentials/bearer_token.h"

namespace norm::server {
namespace {

using credentials::NamedFile;

std::vector<std::string> Given(std::initializer_list<std::string> paths) {
  std::vector<std::string> given;
  for (const std::string& path : paths) {
    if (!path.empty()) given.push_back(path);
  }
  return given;
}

absl::StatusOr<TlsFiles> ReadTls(const SecurityOptions& options) {
  TlsFiles files;
  if (!options.tls()) return files;
  const absl::Time now = absl::Now();
  absl::StatusOr<credentials::KeyPair> own = credentials::ReadKeyPair(
      {"--tls_cert", options.tls_cert}, {"--tls_key", options.tls_key}, now);
  if (!own.ok()) return own.status();
  files.own = *std::move(own);
  if (options.tls_client_ca.empty()) return files;
  absl::StatusOr<std::string> authorities =
      credentials::ReadAuthorities({"--tls_client_ca", options.tls_client_ca}, now);
  if (!authorities.ok()) return authorities.status();
  files.client_ca = *std::move(authorities);
  return files;
}

absl::StatusOr<AccessList> ReadList(const NamedFile& tokens, const NamedFile& clients) {
  AccessList list;
  if (!tokens.path.empty()) {
    absl::StatusOr<std::vector<std::string>> read = credentials::ReadTokens(tokens);
    if (!read.ok()) return read.status();
    list.tokens = *std::move(read);
    list.given = true;
  }
  if (!clients.path.empty()) {
    const absl::StatusOr<std::string> text = credentials::ReadFile(clients);
    if (!text.ok()) return text.status();
    for (absl::string_view name : credentials::ContentLines(*text, nullptr)) {
      list.clients.emplace(name);
    }
    if (list.clients.empty()) return Violation(clients, "holds no name");
    list.given = true;
  }
  return list;
}

absl::StatusOr<AccessLists> ReadLists(const SecurityOptions& options) {
  absl::StatusOr<AccessList> data =
      ReadList({"--data_tokens", options.data_tokens}, {"--data_clients", options.data_clients});
  if (!data.ok()) return data.status();
  absl::StatusOr<AccessList> admin = ReadList({"--admin_tokens", options.admin_tokens},
                                              {"--admin_clients", options.admin_clients});
  if (!admin.ok()) return admin.status();
  return AccessLists(*std::move(data), *std::move(admin));
}

}  // namespace

Security::Security(const SecurityOptions& options, const Logger& log)
    : options_(options),
      log_(log),
      tls_(Given({options_.tls_cert, options_.tls_key, options_.tls_client_ca}),
           [this] { return ReadTls(options_); }),
      lists_(Given({options_.data_tokens, options_.admin_tokens, options_.data_clients,
                    options_.admin_clients}),
             [this] { return ReadLists(options_); }) {}

absl::StatusOr<std::unique_ptr<Security>> Security::Load(const SecurityOptions& options,
                                                         const Logger& log) {
  std::unique_ptr<Security> security(new Security(options, log));
  if (absl::Status status = security->LoadAll(); !status.ok()) return status;
  return security;
}

absl::Status Security::LoadAll() {
  if (absl::Status status = tls_.Load(); !status.ok()) return status;
  if (absl::Status status = lists_.Load(); !status.ok()) return status;
  if (!options_.tls() && !options_.restricts()) return absl::OkStatus();
  WarnOfExposure();
  LogTls("security");
  LogLists("access");
  thread_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

Security::~Security() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopping_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Status Security::Check(absl::string_view path, const Caller& caller) const {
  return lists_.value()->Check(AreaOf(path), caller);
}

void Security::WarnOfExposure() const {
  for (const NamedFile& file : {NamedFile{"--tls_key", options_.tls_key},
                                {"--data_tokens", options_.data_tokens},
                                {"--admin_tokens", options_.admin_tokens}}) {
    const std::string exposure = file.path.empty() ? "" : credentials::Exposure(file.path);
    if (exposure.empty()) continue;
    log_.Warning(
        "secret",
        {{"problem", std::string(Violation(file, absl::StrCat("is ", exposure)).message())}});
  }
}

void Security::Watch() {
  std::unique_lock lock(mutex_);
  const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
  while (!stopping_changed_.wait_for(lock, absl::ToChronoNanoseconds(options_.look_interval),
                                     stopping)) {
    lock.unlock();
    LookAtAll();
    lock.lock();
  }
}

void Security::LookAtAll() {
  const auto kept = [this](const absl::Status& status) {
    log_.Error("security",
               {{"problem", std::string(status.message())}, {"in_force", "what was read before"}});
  };
  if (const absl::StatusOr<credentials::Look> look = tls_.LookAgain(); !look.ok()) {
    kept(look.status());
  } else if (*look == credentials::Look::kReplaced) {
    LogTls("certificates replaced");
  }
  if (const absl::StatusOr<credentials::Look> look = lists_.LookAgain(); !look.ok()) {
    kept(look.status());
  } else if (*look == credentials::Look::kReplaced) {
    LogLists("access lists replaced");
  }
  std::shared_ptr<const TlsFiles> files = tls_.value();
  if (options_.tls() && files != told_expired_ && absl::Now() > files->own.not_after) {
    log_.Error("security", {{"problem", "the certificate in force has expired"},
                            {"subject", files->own.subject}});
    told_expired_ = std::move(files);
  }
}

void Security::LogTls(absl::string_view message) const {
  if (!options_.tls()) {
    log_.Info(message, {{"tls", "off"}});
    return;
  }
  const std::shared_ptr<const TlsFiles> files = tls_.value();
  log_.Info(message, {{"tls", files->client_ca.empty() ? "on" : "on, client certificates required"},
                      {"subject", files->own.subject},
                      {"expires", absl::FormatTime(absl::RFC3339_sec, files->own.not_after,
                                                   absl::UTCTimeZone())}});
}

void Security::LogLists(absl::string_view message) const {
  const std::shared_ptr<const AccessLists> lists = lists_.value();
  log_.Info(message,
            {{"data", lists->Describe(Area::kData)}, {"admin", lists->Describe(Area::kAdmin)}});
}

}  // namespace norm::server
