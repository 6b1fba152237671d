// Row-norm backward kernels for f16 activations.
#include "row_norm/row_norm_backward.cuh"

namespace norm_device {

template const void* RowBackwardKernel<ElementPair<F16, F16>>(RowKind, RowBackwardMethod, bool);
template const void* RowBackwardKernel<ElementPair<F16, F32>>(RowKind, RowBackwardMethod, bool);

}  // namespace norm_device
