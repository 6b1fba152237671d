// Ring kernels of row-norm backward for f16 activations, one request a launch.
#include "row_norm/row_norm_backward_ring_kernels.cuh"

namespace norm_device {

template <>
const void* RingBackwardKernel<F16>(RowKind kind, const RingKernel& kernel) {
  return SelectRingKernel<RingBackwardParams, F16>(kind, kernel);
}
template <>
const void* RingBackwardFewRowsKernel<F16>(const RingKernel& kernel) {
  return SelectRingWidth<RingBackwardFewRows, F16, RowKind::kLayer>(kernel);
}

}  // namespace norm_device
