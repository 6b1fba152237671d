// Strip kernels of row-norm backward for f16 activations.
#include "row_norm/row_norm_strip_backward_kernels.cuh"

namespace norm_device {

template <>
const void* StripBackwardKernel<F16>(BackwardLaunchKind launch, RowKind kind, int shape) {
  return SelectStripBackward<F16>(launch, kind, shape);
}

}  // namespace norm_device
