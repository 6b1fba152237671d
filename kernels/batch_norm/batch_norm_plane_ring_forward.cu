#include "batch_norm/batch_norm_plane_ring.cuh"

namespace norm_device {

template <typename X>
const void* PlaneRingForwardKernel() {
  return reinterpret_cast<const void*>(&PlaneRing<X, ForwardRing<X>>);
}

template const void* PlaneRingForwardKernel<F32>();
template const void* PlaneRingForwardKernel<F16>();
template const void* PlaneRingForwardKernel<BF16>();

}  // namespace norm_device
