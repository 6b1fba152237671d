// Row-norm backward kernels for bf16 activations.
#include "row_norm/row_norm_backward.cuh"

namespace norm_device {

template const void* RowBackwardKernel<ElementPair<BF16, BF16>>(RowKind, RowBackwardMethod, bool);
template const void* RowBackwardKernel<ElementPair<BF16, F32>>(RowKind, RowBackwardMethod, bool);

}  // namespace norm_device
