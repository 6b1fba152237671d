// Row-norm forward kernels for f16 activations.
#include "row_norm/row_norm_forward.cuh"

namespace norm_device {

template const void* RowForwardKernel<ElementPair<F16, F16>>(RowKind, RowMethod, bool);
template const void* RowForwardKernel<ElementPair<F16, F32>>(RowKind, RowMethod, bool);

}  // namespace norm_device
