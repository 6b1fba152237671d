// Ring kernels of row-norm backward for f32 activations, one request a launch.
#include "row_norm/row_norm_backward_ring_kernels.cuh"

namespace norm_device {

template <>
const void* RingBackwardKernel<F32>(RowKind kind, const RingKernel& kernel) {
  return SelectRingKernel<RingBackwardParams, F32>(kind, kernel);
}
template <>
const void* RingBackwardFewRowsKernel<F32>(const RingKernel& kernel) {
  return SelectRingWidth<RingBackwardFewRows, F32, RowKind::kLayer>(kernel);
}

}  // namespace norm_device
