// What two jobs must agree on to be rows of one launch.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "server/scheduler/norm_problem.h"
#include "server/scheduler/parameter_interner.h"

namespace norm::server {

/// Everything about a mergeable problem but its rows. Jobs merge exactly when their keys are equal.
struct BatchKey {
  Op op = Op::kRmsNorm;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;
  Rounding rounding = Rounding::kOnce;
  // BatchNorm: true where positions are the rows, false where images of `spatial` positions are.
  bool channels_last = true;
  TensorRoleSet inputs;
  TensorRoleSet outputs;
  int64_t hidden_size = 0;
  int64_t spatial = 0;  // of BatchNorm with channels_last false, else 0
  // Bits, so that 0.0 and -0.0 differ and the key is an equivalence.
  uint64_t eps_bits = 0;
  uint64_t weight_offset_bits = 0;
  // From one ParameterInterner: compared by identity.
  std::shared_ptr<const ParameterSet> parameters;

  friend bool operator==(const BatchKey&, const BatchKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const BatchKey& key) {
    return H::combine(std::move(h), key.op, key.dtype, key.weight_dtype, key.rounding,
                      key.channels_last, key.inputs, key.outputs, key.hidden_size, key.spatial,
                      key.eps_bits, key.weight_offset_bits, key.parameters.get());
  }
};

/// The key of a job. Precondition: IsRowMergeable(job.problem).
BatchKey MakeBatchKey(const Job& job, ParameterInterner& parameters);

}  // namespace norm::server
