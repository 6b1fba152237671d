// What each flow has in the server, and which part of a budget it may claim.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace norm::server {

/// Flows with accepted jobs. Not thread-safe.
class FlowAccounts {
 public:
  struct Account {
    int64_t requests = 0;          // accepted and not done
    int64_t bytes = 0;             // ProblemBytes of them
    int64_t waiting_requests = 0;  // of them, those without a slot
  };
  using Accounts = absl::flat_hash_map<uint64_t, Account>;

  void Accept(uint64_t flow, int64_t bytes, bool waits);
  void StopWaiting(uint64_t flow);
  void Settle(uint64_t flow, int64_t bytes);

  const Accounts& accounts() const { return accounts_; }
  /// Zeros for a flow that has nothing.
  Account Of(uint64_t flow) const;
  /// The equal part of a budget that each flow may claim, this one included.
  int64_t Share(int64_t budget, uint64_t flow) const;

 private:
  Accounts accounts_;  // none with zero requests
};

}  // namespace norm::server
