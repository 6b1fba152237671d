// Row-norm forward kernels for f32 activations.
#include "row_norm/row_norm_forward.cuh"

namespace norm_device {

template const void* RowForwardKernel<ElementPair<F32, F32>>(RowKind, RowMethod, bool);

}  // namespace norm_device
