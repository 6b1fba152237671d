// Strip kernels of row-norm forward for bf16 activations.
#include "row_norm/row_norm_strip_forward_kernels.cuh"

namespace norm_device {

template <>
const void* StripForwardKernel<BF16>(RowLaunchKind launch, RowKind kind, int shape) {
  return SelectStripForward<BF16>(launch, kind, shape);
}

}  // namespace norm_device
