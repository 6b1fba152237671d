// Row-norm forward kernels for long rows of f32 activations; there are none for f64.
#include "row_norm/row_norm_forward_ring_kernels.cuh"

namespace norm_device {

template const void* RowRingKernel<ElementPair<F32, F32>>(RowLaunchKind, RowKind, RowMethod, bool);

template <>
const void* RowRingKernel<ElementPair<F64, F64>>(RowLaunchKind, RowKind, RowMethod, bool) {
  return nullptr;
}
template <>
const void* RowRingKernel<ElementPair<F64, F32>>(RowLaunchKind, RowKind, RowMethod, bool) {
  return nullptr;
}

}  // namespace norm_device
