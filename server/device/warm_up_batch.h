// What an executor computes before its first request.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "server/scheduler/batch_executor.h"

namespace norm::server {

/// Every op, direction, mode and dtype with rows of several lengths, so small that a few bytes move
/// and large enough that they are staged; and one so large that it goes in slices.
std::vector<NormProblem> WarmUpProblems();

/// A batch of one job, every input zeros. Borrows `zeros`, at least as long as the longest input.
std::unique_ptr<Batch> WarmUpBatch(const NormProblem& problem, absl::Span<const std::byte> zeros);

}  // namespace norm::server
