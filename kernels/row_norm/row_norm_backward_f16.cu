// Row-norm backward kernels for f16 activations: rows longer than a cluster holds.
#include "row_norm/row_norm_backward_careful.cuh"

namespace norm_device {

template const void* CarefulBackwardKernel<ElementPair<F16, F16>>(RowKind, RowBackwardMethod, bool);
template const void* CarefulBackwardKernel<ElementPair<F16, F32>>(RowKind, RowBackwardMethod, bool);

}  // namespace norm_device
