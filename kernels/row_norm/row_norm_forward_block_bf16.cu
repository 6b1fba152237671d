// Kernels of LayerNorm rows in a block for bf16 activations.
#include "row_norm/row_norm_forward_block_kernels.cuh"

namespace norm_device {

template const void* BlockRowsKernel<ElementPair<BF16, BF16>>(RowMethod, int);
template const void* BlockRowsKernel<ElementPair<BF16, F32>>(RowMethod, int);

}  // namespace norm_device
