#include "batch_norm/batch_norm_plane_ring.cuh"

namespace norm_device {

template <typename X>
const void* PlaneRingBackwardKernel() {
  return reinterpret_cast<const void*>(&PlaneRing<X, BackwardRing<X>>);
}

template const void* PlaneRingBackwardKernel<F32>();
template const void* PlaneRingBackwardKernel<F16>();
template const void* PlaneRingBackwardKernel<BF16>();

}  // namespace norm_device
