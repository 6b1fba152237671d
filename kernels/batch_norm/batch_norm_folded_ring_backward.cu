#include "batch_norm/batch_norm_folded_ring.cuh"

namespace norm_device {

template <typename X>
const void* FoldedRingBackwardKernel() {
  return reinterpret_cast<const void*>(&FoldedRing<X, BackwardRing<X>>);
}

template const void* FoldedRingBackwardKernel<F32>();
template const void* FoldedRingBackwardKernel<F16>();
template const void* FoldedRingBackwardKernel<BF16>();

}  // namespace norm_device
