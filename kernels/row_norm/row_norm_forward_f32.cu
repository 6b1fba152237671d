// Row-norm forward kernels for f32 activations.
#include "row_norm/row_norm_forward_kernels.cuh"

namespace norm_device {

template const void* RowForwardKernel<ElementPair<F32, F32>>(RowLaunchKind, RowKind, RowMethod,
                                                             bool);

}  // namespace norm_device
