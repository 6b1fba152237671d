#include "server/transport/unsent_responses.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduler/brief_lock.h"

namespace norm::server {

UnsentResponses::UnsentResponses(const UnsentLimits& limits, Metrics& metrics, const Clock& clock)
    : limits_(limits), metrics_(metrics), clock_(clock), watch_([this] { Watch(); }) {}

UnsentResponses::~UnsentResponses() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  watch_.join();
}

absl::Status UnsentResponses::Check(uint64_t flow) const {
  // Below the limit nobody is refused, and no lock is taken.
  if (total_bytes_.load(std::memory_order_relaxed) < limits_.max_bytes) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  const auto found = flow_bytes_.find(flow);
  if (found == flow_bytes_.end()) return absl::OkStatus();
  const int64_t part = limits_.max_bytes / static_cast<int64_t>(flow_bytes_.size());
  if (found->second < part) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("responses of ", found->second,
                                             " bytes wait for this connection to read them, its "
                                             "part is ",
                                             part));
}

void UnsentResponses::Add(uint64_t flow, int64_t bytes) {
  int64_t& of_flow = flow_bytes_[flow];
  of_flow += bytes;
  if (of_flow == 0) flow_bytes_.erase(flow);
  const int64_t total = total_bytes_.load(std::memory_order_relaxed) + bytes;
  total_bytes_.store(total, std::memory_order_relaxed);
  metrics_.SetUnsent(total);
}

void UnsentResponses::Watch() {
  const auto interval = absl::ToChronoMicroseconds(
      std::clamp(limits_.write_timeout / 4, absl::Milliseconds(1), absl::Seconds(1)));
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, interval, [this] { return stopping_; })) {
    if (writes_.empty()) continue;
    const absl::Time now = clock_.Now();
    for (OfCall::Write& write : writes_) {
      if (write.deadline > now) break;
      if (std::exchange(write.cancelled, true)) continue;
      metrics_.RecordWriteTimeout();
      // Under the mutex, which keeps the call from ending: gRPC hands the end of the write to a
      // completion queue, and what it drops here returns to its pool without a lock of this room.
      write.context->TryCancel();
    }
  }
}

UnsentResponses::OfCall::OfCall(UnsentResponses& all, grpc::ServerContext& context) : all_(all) {
  node_ = write_.insert(write_.end(), {absl::InfiniteFuture(), &context});
}

UnsentResponses::OfCall::~OfCall() {
  EndWrite();
  if (held_bytes_ != 0) Drop(held_bytes_);
}

void UnsentResponses::OfCall::Hold(int64_t bytes) {
  held_bytes_ += bytes;
  const BriefLock lock(all_.mutex_);
  all_.Add(flow_, bytes);
}

void UnsentResponses::OfCall::Drop(int64_t bytes) {
  held_bytes_ -= bytes;
  const BriefLock lock(all_.mutex_);
  all_.Add(flow_, -bytes);
}

void UnsentResponses::OfCall::StartWrite(int64_t bytes) {
  BeginWrite(bytes);
  const BriefLock lock(all_.mutex_);
  all_.Add(flow_, bytes);
  all_.writes_.splice(all_.writes_.end(), write_);
}

void UnsentResponses::OfCall::StartHeldWrite(int64_t bytes) {
  held_bytes_ -= bytes;
  BeginWrite(bytes);
  const BriefLock lock(all_.mutex_);
  all_.writes_.splice(all_.writes_.end(), write_);
}

void UnsentResponses::OfCall::BeginWrite(int64_t bytes) {
  writing_ = true;
  writing_bytes_ = bytes;
  *node_ = {all_.clock_.Now() + all_.limits_.write_timeout, node_->context};
}

void UnsentResponses::OfCall::EndWrite() {
  if (!std::exchange(writing_, false)) return;
  const BriefLock lock(all_.mutex_);
  write_.splice(write_.end(), all_.writes_, node_);
  all_.Add(flow_, -writing_bytes_);
}

}  // namespace norm::server
