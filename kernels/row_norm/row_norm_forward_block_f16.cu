// Kernels of LayerNorm rows in a block for f16 activations.
#include "row_norm/row_norm_forward_block_kernels.cuh"

namespace norm_device {

template const void* BlockRowsKernel<ElementPair<F16, F16>>(RowMethod, int);
template const void* BlockRowsKernel<ElementPair<F16, F32>>(RowMethod, int);

}  // namespace norm_device
