// Ring kernels of row-norm backward for bf16 activations, one request a launch.
#include "row_norm/row_norm_backward_ring_kernels.cuh"

namespace norm_device {

template <>
const void* RingBackwardKernel<BF16>(RowKind kind, const RingKernel& kernel) {
  return SelectRingKernel<RingBackwardParams, BF16>(kind, kernel);
}
template <>
const void* RingBackwardFewRowsKernel<BF16>(const RingKernel& kernel) {
  return SelectRingWidth<RingBackwardFewRows, BF16, RowKind::kLayer>(kernel);
}

}  // namespace norm_device
