// Several normd processes behind one port, so that a CUDA error ends one of them and not the service.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/shutdown_signals.h"
#include "server/observability/logging.h"

namespace norm::server {

struct GroupAddresses {
  std::string grpc;
  std::vector<std::string> metrics;  // one a member
};

struct ProcessGroupOptions {
  /// Of this program, its name first. Members get them and, behind them, what differs.
  std::vector<std::string> arguments;
  std::string listen;          // host:port that all share; port 0 takes any free one
  std::string metrics_listen;  // host:port of the first member; + i for member i, unless it is 0
  int processes = 2;
  /// What CUDA_VISIBLE_DEVICES may list, dealt out in turn; empty leaves the environment as it is.
  std::vector<std::string> devices;
  /// Called once, when all members serve. An error ends the group.
  std::function<absl::Status(const GroupAddresses&)> on_ready;
};

/// Deals `devices` (what CUDA_VISIBLE_DEVICES may list) out to `members` processes in turn: the text
/// for each. Precondition: 1 <= members <= devices.size().
std::vector<std::string> DealDevices(const std::vector<std::string>& devices, int members);

/// A port that the members share: bound with SO_REUSEPORT but not listening, so that it stays
/// reserved while members come and go and takes no connection itself.
class SharedPort {
 public:
  /// `listen`: host:port, port 0 takes any free one.
  /// Errors: INVALID_ARGUMENT when it is no host:port, UNAVAILABLE when somebody listens on it.
  static absl::StatusOr<SharedPort> Reserve(const std::string& listen);
  SharedPort(SharedPort&& other) noexcept;
  SharedPort(const SharedPort&) = delete;
  SharedPort& operator=(const SharedPort&) = delete;
  ~SharedPort();

  /// host:port with the port that was bound.
  const std::string& address() const { return address_; }

 private:
  SharedPort(int fd, std::string address) : fd_(fd), address_(std::move(address)) {}

  int fd_;
  std::string address_;
};

/// Starts the members, calls `on_ready` when all of them serve, and watches them. Returns the exit
/// code of this process.
///
/// Restarts:  a member that ends unasked after it has served is started again, after one second and
///            twice as long each time it fails again, up to half a minute. The others go on.
/// Ends:      on SIGTERM or SIGINT, which all members get as SIGTERM: exit code 0 when all of theirs
///            are, else the first other one. A second signal is passed on too and ends them at once.
///            Also when a member ends before it has ever served, and when none is left running: the
///            others are stopped and its exit code returned (128 + n for a signal n).
/// Processes: members are direct children in process groups of their own, so that a terminal's
///            interrupt reaches them once; they get SIGTERM when this process dies.
/// Errors:    INVALID_ARGUMENT for addresses that cannot be given to so many, UNAVAILABLE when the
///            port is taken or no folder for the members' port files can be made.
absl::StatusOr<int> RunProcessGroup(const ProcessGroupOptions& options, ShutdownSignals& signals,
                                    const Logger& log);

}  // namespace norm::server
