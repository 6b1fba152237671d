// What a compiled kernel takes of a multiprocessor: facts that need no hardware counters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/cold_timer.h"
#include "norm/kernels/result.h"

namespace norm::bench {

/// One kernel launch.
struct KernelFacts {
  int registers_per_thread = 0;
  int64_t shared_bytes = 0;  // static and dynamic, of a block
  int64_t blocks = 0;
  int threads = 0;         // of a block
  double occupancy = 0.0;  // resident threads over what a multiprocessor can hold
};

/// The kernels that `work` launches, in order: the work is captured, not run, and the graph's nodes
/// are read, so this holds for any call. Lazily loaded kernels must have run once before.
Result<std::vector<KernelFacts>> KernelsOf(const Enqueue& work, cuda::StreamView stream);

/// "32/24": the values of several kernels.
std::string JoinRegisters(const std::vector<KernelFacts>& kernels);
std::string JoinSharedBytes(const std::vector<KernelFacts>& kernels);
std::string JoinOccupancy(const std::vector<KernelFacts>& kernels);

}  // namespace norm::bench
