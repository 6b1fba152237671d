// The flags that the subcommands share: which server, how long, and how to print.
#pragma once

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "norm/client/client.h"

namespace norm::normctl {

enum class OutputFormat { kText, kJson };

struct ServerFlags {
  std::string server = "127.0.0.1:8470";
  absl::Duration timeout = absl::Seconds(60);
  int attempts = 4;
  OutputFormat format = OutputFormat::kText;

  void AddTo(CLI::App* command);
  /// --server, --timeout and what secures the connection alone.
  void AddConnectionTo(CLI::App* command);
  /// Options with what secures the connection, else the defaults.
  client::ClientOptions Options() const;
  /// As if there were no --token-file.
  void DropToken() { token_file_.clear(); }
  absl::StatusOr<std::unique_ptr<client::Client>> Connect(
      const client::ChunkOptions& chunks = {}) const;

 private:
  void AddSecurityTo(CLI::App* command);

  bool use_tls_ = false;  // or any of tls_ is set
  client::TlsOptions tls_;
  std::string token_file_;
  std::string traceparent_;
};

}  // namespace norm::normctl
