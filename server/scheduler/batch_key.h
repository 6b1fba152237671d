// What two jobs must agree on to share a launch, and to be rows of one segment of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "server/scheduler/norm_problem.h"
#include "server/scheduler/parameter_interner.h"

namespace norm::server {

/// What the segments of one launch have in common (ValidateSegments of the kernels). Parameters,
/// eps, offsets, rows and the optional tensors are each segment's own.
struct BatchKey {
  Op op = Op::kRmsNorm;
  Direction direction = Direction::kForward;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;
  int64_t hidden_size = 0;
  // BatchNorm, as in LaunchShape; for the row ops as made here.
  BatchNormMode mode = BatchNormMode::kTraining;
  BatchNormLayout layout = BatchNormLayout::kNchw;
  int64_t spatial = 0;

  friend bool operator==(const BatchKey&, const BatchKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const BatchKey& key) {
    return H::combine(std::move(h), key.op, key.direction, key.dtype, key.weight_dtype,
                      key.hidden_size, key.mode, key.layout, key.spatial);
  }
};

/// Everything else about a mergeable problem but its rows. Jobs of a launch are concatenated
/// exactly when these are equal.
struct SegmentKey {
  Rounding rounding = Rounding::kOnce;
  TensorRoleSet inputs;
  TensorRoleSet outputs;
  // Bits, so that 0.0 and -0.0 differ and the key is an equivalence.
  uint64_t eps_bits = 0;
  uint64_t weight_offset_bits = 0;
  // From one ParameterInterner: compared by identity.
  std::shared_ptr<const ParameterSet> parameters;

  friend bool operator==(const SegmentKey&, const SegmentKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SegmentKey& key) {
    return H::combine(std::move(h), key.rounding, key.inputs, key.outputs, key.eps_bits,
                      key.weight_offset_bits, key.parameters.get());
  }
};

/// The keys of one job. Without a segment key it is a segment of its own.
struct JobKeys {
  BatchKey batch;
  std::optional<SegmentKey> segment;
};

JobKeys MakeJobKeys(const Job& job, ParameterInterner& parameters);

/// Whether a job of this problem leaves with others. Large ones gain nothing: they fill the bus and
/// the device alone.
bool SharesLaunches(const NormProblem& problem);

/// ProblemBytes from which a job travels alone: 16 MiB take about 0.3 ms on PCIe, thirty times
/// what a launch costs.
inline constexpr int64_t kMinLoneJobBytes = int64_t{16} << 20;

}  // namespace norm::server
