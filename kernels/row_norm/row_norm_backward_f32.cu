// Row-norm backward kernels for f32 activations.
#include "row_norm/row_norm_backward.cuh"

namespace norm_device {

template const void* RowBackwardKernel<ElementPair<F32, F32>>(RowKind, RowBackwardMethod, bool);

}  // namespace norm_device
