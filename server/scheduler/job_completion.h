// Ends jobs: the only place where `done` is called.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduler/batch_executor.h"

namespace norm::server {

/// Ends every job of a batch that a device has handed back, each with its own result. Results that
/// do not match the jobs in number are an INTERNAL error of all.
void CompleteBatch(std::unique_ptr<Batch> batch, const std::string& device_name);

/// Ends a job that was never started.
void CompleteUnstarted(std::unique_ptr<Job> job, absl::Status status, absl::Time now);

}  // namespace norm::server
