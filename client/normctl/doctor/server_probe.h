// Asks one server for `normctl doctor`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/normctl/doctor/port_probe.h"
#include "norm/client/client.h"

namespace norm::normctl {

/// A question that got no answer, or a refusal.
struct FailedQuestion {
  std::string name;  // "health", "info", "layer_norm", "rms_norm"
  absl::Status status;
};

/// What one server answered; absent what failed, and what was not asked since it cannot be reached.
struct ServerFacts {
  std::string address;
  PortFacts port;
  bool asked = false;  // whether anything beyond its port was
  std::vector<FailedQuestion> failures;
  std::optional<client::Health> health;
  std::optional<client::ServerInfo> info;
  std::optional<absl::Duration> clock_ahead;  // of the server, where it tells its time
  // Of a LayerNorm with a large mean and a small deviation: largest distance from its exact result;
  // NaN where the result has one.
  std::optional<double> error;
  std::string device;                 // that computed it
  std::optional<double> kernel_rate;  // bytes/s of an RMSNorm of 8 MiB, moved in and out; GPUs only
};

/// Whether it answered nothing since there is no connection; where nothing was asked, as its port tells.
bool IsUnreachable(const ServerFacts& facts);

/// `client` is connected to `address` alone; null: its port alone is looked at.
ServerFacts LookAtServer(const std::string& address, client::Client* client,
                         absl::Duration timeout);

}  // namespace norm::normctl
