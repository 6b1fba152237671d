// Kernels of quantized row norms for bf16 activations.
#include "row_norm/row_norm_quantized.cuh"

namespace norm_device {

template const void* QuantizedRowKernel<ElementPair<BF16, BF16>>(RowKind, QuantizedRowMethod);
template const void* QuantizedRowKernel<ElementPair<BF16, F32>>(RowKind, QuantizedRowMethod);

}  // namespace norm_device
