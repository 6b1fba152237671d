// Row-norm forward kernels for long rows of bf16 activations.
#include "row_norm/row_norm_forward_ring_kernels.cuh"

namespace norm_device {

template const void* RowRingKernel<ElementPair<BF16, BF16>>(RowLaunchKind, RowKind, RowMethod,
                                                            bool);
template const void* RowRingKernel<ElementPair<BF16, F32>>(RowLaunchKind, RowKind, RowMethod, bool);

}  // namespace norm_device
