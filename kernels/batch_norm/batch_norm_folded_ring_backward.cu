#include "batch_norm/batch_norm_folded_ring.cuh"

namespace norm_device {

template <typename X>
const void* FoldedRingBackwardKernel(bool aligned) {
  return aligned ? reinterpret_cast<const void*>(&FoldedRing<X, BackwardRing<X>, true>)
                 : reinterpret_cast<const void*>(&FoldedRing<X, BackwardRing<X>, false>);
}

template const void* FoldedRingBackwardKernel<F32>(bool);
template const void* FoldedRingBackwardKernel<F16>(bool);
template const void* FoldedRingBackwardKernel<BF16>(bool);

}  // namespace norm_device
