// Strip kernels of row-norm backward for bf16 activations.
#include "row_norm/row_norm_strip_backward_kernels.cuh"

namespace norm_device {

template <>
const void* StripBackwardKernel<BF16>(BackwardLaunchKind launch, RowKind kind, int shape) {
  return SelectStripBackward<BF16>(launch, kind, shape);
}

}  // namespace norm_device
