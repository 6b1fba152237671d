// The ladder: kernels that the founding write-ups go through, one after another, each kept as it was
// meant (which memory accesses, which reduction) and computing the right thing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/cold_timer.h"
#include "bench/device_case.h"
#include "bench/suite.h"
#include "bench/tensor_arena.h"

namespace norm::bench {

/// One rung: float32, forward without statistics or backward with all gradients.
struct Rung {
  std::string id;       // R0, L4, B6
  std::string name;     // "warp per row"
  std::string changed;  // what it does that the rung before does not
  Op op = Op::kRmsNorm;
  BenchDirection direction = BenchDirection::kForward;
  Variant variant = Variant::kPlain;
  /// Whether the rung computes this shape at all.
  std::function<bool(const BenchCase&)> supports;
  /// The work over the tensors of a case of this op, direction and variant.
  std::function<Result<Enqueue>(const DeviceCase&, TensorArena&)> work;
};

/// Every rung, in the order of the write-ups.
const std::vector<Rung>& AllRungs();

/// The write-ups' shapes; a case for each, in float32.
std::vector<BenchCase> LadderCases();

/// Whether `rung` is a rung of this case's op, direction and variant, and supports it.
bool Fits(const Rung& rung, const BenchCase& bench_case);

}  // namespace norm::bench
