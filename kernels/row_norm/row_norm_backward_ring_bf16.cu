// Ring kernels of row-norm backward for bf16 activations.
#include "row_norm/row_norm_backward_ring_kernels.cuh"

namespace norm_device {

template const void* RingBackwardKernel<BF16>(RowKind, const RingKernel&);

}  // namespace norm_device
