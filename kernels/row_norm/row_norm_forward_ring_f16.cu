// Row-norm forward kernels for long rows of f16 activations.
#include "row_norm/row_norm_forward_ring_kernels.cuh"

namespace norm_device {

template const void* RowRingKernel<ElementPair<F16, F16>>(RowLaunchKind, RowKind, RowMethod, bool);
template const void* RowRingKernel<ElementPair<F16, F32>>(RowLaunchKind, RowKind, RowMethod, bool);

}  // namespace norm_device
