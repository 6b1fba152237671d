// What protects the server: its certificate and the lists of who may call it, read from files and
// followed as they change.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/credentials/pem_files.h"
#include "proto/credentials/watched_files.h"
#include "server/observability/logging.h"
#include "server/security/access_lists.h"

namespace norm::server {

/// Paths; an empty one turns off what it is for.
struct SecurityOptions {
  std::string tls_cert;  // with tls_key
  std::string tls_key;
  std::string tls_client_ca;  // clients must show a certificate of it
  std::string data_tokens;
  std::string admin_tokens;
  std::string data_clients;  // with tls_client_ca
  std::string admin_clients;
  absl::Duration look_interval = absl::Seconds(1);  // between two looks at the files

  bool tls() const { return !tls_cert.empty(); }
  bool restricts() const {
    return !data_tokens.empty() || !admin_tokens.empty() || !data_clients.empty() ||
           !admin_clients.empty();
  }
};

struct TlsFiles {
  credentials::KeyPair own;
  std::string client_ca;  // PEM; empty: clients show no certificate
};

/// Files that change are taken over without a restart: certificates by connections that begin
/// afterwards, lists by the next call. A change that cannot be used is logged once, and what was read
/// before stays in force: a file that is emptied or removed revokes nothing.
///
/// Threads:  safe; one of its own looks at the files, joined on destruction.
class Security {
 public:
  /// Borrows `log`. Errors: INVALID_ARGUMENT for a file that cannot be used, naming its flag.
  static absl::StatusOr<std::unique_ptr<Security>> Load(const SecurityOptions& options,
                                                        const Logger& log);
  ~Security();
  Security(const Security&) = delete;
  Security& operator=(const Security&) = delete;

  /// What new connections are met with; null without TLS.
  std::shared_ptr<const TlsFiles> tls_files() const { return tls_.value(); }
  bool wants_client_certificates() const { return !options_.tls_client_ca.empty(); }

  /// Whether any call may be refused at all.
  bool restricts() const { return options_.restricts(); }
  /// Errors: those of AccessLists::Check.
  absl::Status Check(absl::string_view path, const Caller& caller) const;

 private:
  Security(const SecurityOptions& options, const Logger& log);

  absl::Status LoadAll();
  void WarnOfExposure() const;
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);
  void LookAtAll();
  void LogTls(absl::string_view message) const;
  void LogLists(absl::string_view message) const;

  const SecurityOptions options_;
  const Logger& log_;
  credentials::WatchedFiles<TlsFiles> tls_;
  credentials::WatchedFiles<AccessLists> lists_;
  std::shared_ptr<const TlsFiles> told_expired_;  // of the thread

  std::mutex mutex_;
  std::condition_variable stopping_changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace norm::server
