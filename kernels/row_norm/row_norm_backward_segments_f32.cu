// Ring kernels of row-norm backward for f32 activations, many requests a launch.
#include "row_norm/row_norm_backward_ring_kernels.cuh"

namespace norm_device {

template <>
const void* RingBackwardSegmentsKernel<F32>(RowKind kind, const RingKernel& kernel) {
  return SelectRingKernel<RingBackwardSegments, F32>(kind, kernel);
}

}  // namespace norm_device
