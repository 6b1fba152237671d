#include "server/scheduler/job_completion.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace norm::server {
namespace {

/// The clock is the wall clock, which may be set back.
absl::Duration Waited(const Job& job, absl::Time until) {
  return std::max(absl::ZeroDuration(), until - job.submitted);
}

}  // namespace

void CompleteBatch(std::unique_ptr<Batch> batch, const std::string& device_name) {
  if (batch->results.size() != batch->jobs.size()) {
    JobResult broken;
    broken.status = absl::InternalError(absl::StrCat("device returned ", batch->results.size(),
                                                     " results for ", batch->jobs.size(), " jobs"));
    batch->results.assign(batch->jobs.size(), broken);
  }
  const auto segments = static_cast<int64_t>(std::max<size_t>(1, batch->segment_jobs.size()));
  int64_t rows = 0;
  for (const auto& job : batch->jobs) {
    rows += job->problem.rows;
  }
  for (size_t i = 0; i < batch->jobs.size(); ++i) {
    Job& job = *batch->jobs[i];
    JobTiming& timing = batch->results[i].timing;
    timing.queue = Waited(job, batch->started);
    timing.device = device_name;
    timing.batch_requests = static_cast<int64_t>(batch->jobs.size());
    timing.batch_rows = rows;
    timing.batch_segments = segments;
    job.memory = JobMemory();  // results hold theirs
    auto done = std::move(job.done);
    done(std::move(batch->results[i]));
  }
}

void CompleteUnstarted(std::unique_ptr<Job> job, absl::Status status, absl::Time now) {
  JobResult result;
  result.status = std::move(status);
  result.timing.queue = Waited(*job, now);
  job->memory = JobMemory();
  auto done = std::move(job->done);
  done(std::move(result));
}

}  // namespace norm::server
