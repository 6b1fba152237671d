#include "batch_norm/batch_norm_folded_ring.cuh"

namespace norm_device {

template <typename X>
const void* FoldedRingForwardKernel() {
  return reinterpret_cast<const void*>(&FoldedRing<X, ForwardRing<X>>);
}

template const void* FoldedRingForwardKernel<F32>();
template const void* FoldedRingForwardKernel<F16>();
template const void* FoldedRingForwardKernel<BF16>();

}  // namespace norm_device
