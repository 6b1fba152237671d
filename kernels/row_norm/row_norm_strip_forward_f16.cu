// Strip kernels of row-norm forward for f16 activations.
#include "row_norm/row_norm_strip_forward_kernels.cuh"

namespace norm_device {

template <>
const void* StripForwardKernel<F16>(RowLaunchKind launch, RowKind kind, int shape) {
  return SelectStripForward<F16>(launch, kind, shape);
}

}  // namespace norm_device
