// Row-norm backward kernels for f64 activations.
#include "row_norm/row_norm_backward_careful.cuh"

namespace norm_device {

template const void* CarefulBackwardKernel<ElementPair<F64, F64>>(RowKind, RowBackwardMethod, bool);
template const void* CarefulBackwardKernel<ElementPair<F64, F32>>(RowKind, RowBackwardMethod, bool);

}  // namespace norm_device
