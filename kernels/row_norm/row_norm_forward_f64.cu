// Row-norm forward kernels for f64 activations.
#include "row_norm/row_norm_forward_kernels.cuh"

namespace norm_device {

template const void* RowForwardKernel<ElementPair<F64, F64>>(RowLaunchKind, RowKind, RowMethod,
                                                             bool);
template const void* RowForwardKernel<ElementPair<F64, F32>>(RowLaunchKind, RowKind, RowMethod,
                                                             bool);

}  // namespace norm_device
