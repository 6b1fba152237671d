// What one request asks to be computed: a plain value, checked by the transport, run by the device
// room.
#pragma once

#include <cstdint>
#include <utility>

#include "norm/kernels/batch_norm.h"
#include "norm/kernels/dtype.h"
#include "norm/kernels/op_types.h"

namespace norm::server {

/// Every tensor a request can carry in or out. Also an index into arrays of kTensorRoleCount.
enum class TensorRole : uint8_t {
  kX,
  kWeight,
  kBias,
  kResidual,
  kRunningMean,
  kRunningVar,
  kDy,
  kMean,
  kRstd,
  kDresidualSum,
  kY,
  kResidualSum,
  kDx,
  kDweight,
  kDbias,
};
inline constexpr int kTensorRoleCount = 15;

/// "x", "weight", ...: the proto field of the role.
const char* TensorRoleName(TensorRole role);

/// A set of TensorRole.
class TensorRoleSet {
 public:
  constexpr TensorRoleSet() = default;
  constexpr void Add(TensorRole role) { bits_ |= Bit(role); }
  constexpr bool Has(TensorRole role) const { return (bits_ & Bit(role)) != 0; }
  friend constexpr bool operator==(TensorRoleSet, TensorRoleSet) = default;
  template <typename H>
  friend H AbslHashValue(H h, TensorRoleSet set) {
    return H::combine(std::move(h), set.bits_);
  }

 private:
  static constexpr uint32_t Bit(TensorRole role) { return 1U << static_cast<uint32_t>(role); }
  uint32_t bits_ = 0;
};

/// One computation, sizes and options, without its data. Consistent by construction
/// (server/transport/request_decoder). kMean, kRstd, kRunningMean and kRunningVar appear in
/// `inputs` or `outputs` or both.
struct NormProblem {
  Op op = Op::kRmsNorm;
  Direction direction = Direction::kForward;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;  // of weight, bias, dweight, dbias; equals
                                     // StatisticsDType(dtype) when there is none
  TensorRoleSet inputs;
  TensorRoleSet outputs;

  // Row ops. For BatchNorm rows counts batch * spatial and hidden_size the channels (for limits and
  // metrics).
  int64_t rows = 0;
  int64_t hidden_size = 0;
  Rounding rounding = Rounding::kOnce;
  double weight_offset = 0.0;

  // BatchNorm.
  BatchNormShape batch_norm_shape;
  BatchNormMode batch_norm_mode = BatchNormMode::kTraining;
  double momentum = 0.1;

  double eps = 0.0;
};

/// Elements and dtype of a role's tensor in this problem, and the bytes they take. No overflow: the
/// decoder bounded them.
int64_t TensorElements(const NormProblem& problem, TensorRole role);
DType TensorDType(const NormProblem& problem, TensorRole role);
int64_t TensorBytes(const NormProblem& problem, TensorRole role);

/// Bytes of all inputs plus all outputs: what the problem must move, and what admission counts.
int64_t ProblemBytes(const NormProblem& problem);

/// Whether this role is a parameter: given once per launch and shared by the rows of every job
/// merged into it, so its bytes must be equal in all of them. The other inputs and outputs of a
/// mergeable problem are concatenated.
constexpr bool IsParameter(TensorRole role) {
  return role == TensorRole::kWeight || role == TensorRole::kBias ||
         role == TensorRole::kRunningMean || role == TensorRole::kRunningVar;
}

/// Bytes of the input parameters: what a merged launch reads once instead of once per job.
int64_t ParameterBytes(const NormProblem& problem);

/// A BatchNorm tensor whose last dimension is the channels: NHWC, and [N, C] in either layout. Its
/// positions are rows.
bool IsChannelsLast(const BatchNormShape& shape);

/// The shape that the kernels see for a BatchNorm problem. Inference is point by point: positions
/// are rows of [rows, channels] where channels are last, so that jobs of any such shape share it.
/// Statistics keep the shape that was asked for.
BatchNormShape LaunchShape(const NormProblem& problem);

/// Whether rows of this problem may be concatenated with rows of another, each row's result being
/// independent (the merging law, CONTRIBUTING.md): row-wise forward, and BatchNorm inference that
/// returns y alone. BatchNorm concatenates positions where channels are last, images of equal
/// spatial size in NCHW.
bool IsRowMergeable(const NormProblem& problem);

}  // namespace norm::server
