// Kernels of quantized row norms for f32 activations.
#include "row_norm/row_norm_quantized.cuh"

namespace norm_device {

template const void* QuantizedRowKernel<ElementPair<F32, F32>>(RowKind, QuantizedRowMethod);

}  // namespace norm_device
