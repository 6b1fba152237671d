#include "server/device/cuda_warm_up.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "server/device/warm_up_batch.h"

namespace norm::server {

Status WarmUp(CudaFlight& flight) {
  const std::vector<NormProblem> problems = WarmUpProblems();
  int64_t largest = 0;
  for (const NormProblem& problem : problems) {
    largest = std::max(largest, TensorBytes(problem, TensorRole::kX));
  }
  const std::vector<std::byte> zeros(static_cast<size_t>(largest));
  for (const NormProblem& problem : problems) {
    const std::unique_ptr<Batch> batch = WarmUpBatch(problem, zeros);
    if (!flight.Prepare(*batch, /*alone=*/true, LeaseMode::kAllocates).ok() ||
        !flight.LeaseDeviceMemory().ok()) {
      flight.Release();
      continue;
    }
    Status status = flight.Enqueue(*batch);
    const Status done = flight.Synchronize();
    if (status.ok()) status = done;
    if (status.ok()) status = flight.Finish(*batch).status();
    flight.Release();
    NORM_RETURN_IF_ERROR(status);
  }
  return Status();
}

}  // namespace norm::server
