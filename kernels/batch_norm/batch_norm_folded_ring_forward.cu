#include "batch_norm/batch_norm_folded_ring.cuh"

namespace norm_device {

template <typename X>
const void* FoldedRingForwardKernel(bool aligned) {
  return aligned ? reinterpret_cast<const void*>(&FoldedRing<X, ForwardRing<X>, true>)
                 : reinterpret_cast<const void*>(&FoldedRing<X, ForwardRing<X>, false>);
}

template const void* FoldedRingForwardKernel<F32>(bool);
template const void* FoldedRingForwardKernel<F16>(bool);
template const void* FoldedRingForwardKernel<BF16>(bool);

}  // namespace norm_device
