// How often an executor takes memory from the heap for a batch, once it has run some like it.
#pragma once

#include <cstdint>

#include "server/scheduler/batch_executor.h"

namespace norm::test {

/// Allocations for each of the last `measured` batches of `segments` jobs of this problem, each a segment: from Start until
/// the last result is dropped, of every thread; without those that make the jobs.
double AllocationsPerBatch(server::BatchExecutor& executor, const server::NormProblem& problem,
                           int segments, int measured);

/// Checks the bound on every kind of batch: the results of a batch are a vector, and a queue of
/// batches takes a block now and then.
void ExpectFewAllocations(server::BatchExecutor& executor);

}  // namespace norm::test
