// Row-norm backward kernels for f16 activations.
#include "row_norm/row_norm_backward.cuh"

namespace norm_device {

template const void* RowBackwardKernel<ElementPair<F16, F16>>(RowKind, RowMethod, bool);
template const void* RowBackwardKernel<ElementPair<F16, F32>>(RowKind, RowMethod, bool);

}  // namespace norm_device
