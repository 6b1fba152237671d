#include "server/scheduler/flow_accounts.h"

namespace norm::server {

void FlowAccounts::Accept(uint64_t flow, int64_t bytes, bool waits) {
  Account& account = accounts_[flow];
  ++account.requests;
  account.bytes += bytes;
  account.waiting_requests += waits ? 1 : 0;
}

void FlowAccounts::StopWaiting(uint64_t flow) { --accounts_.at(flow).waiting_requests; }

void FlowAccounts::Settle(uint64_t flow, int64_t bytes) {
  const auto found = accounts_.find(flow);
  found->second.bytes -= bytes;
  if (--found->second.requests == 0) accounts_.erase(found);
}

FlowAccounts::Account FlowAccounts::Of(uint64_t flow) const {
  const auto found = accounts_.find(flow);
  return found == accounts_.end() ? Account() : found->second;
}

int64_t FlowAccounts::Share(int64_t budget, uint64_t flow) const {
  const auto others = static_cast<int64_t>(accounts_.size()) - (accounts_.contains(flow) ? 1 : 0);
  return budget / (others + 1);
}

}  // namespace norm::server
