// Row-norm forward kernels for f16 activations.
#include "row_norm/row_norm_forward_kernels.cuh"

namespace norm_device {

template const void* RowForwardKernel<ElementPair<F16, F16>>(RowLaunchKind, RowKind, RowMethod,
                                                             bool);
template const void* RowForwardKernel<ElementPair<F16, F32>>(RowLaunchKind, RowKind, RowMethod,
                                                             bool);

}  // namespace norm_device
