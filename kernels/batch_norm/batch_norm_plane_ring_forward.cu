#include "batch_norm/batch_norm_plane_ring.cuh"

namespace norm_device {

template <typename X>
const void* PlaneRingForwardKernel(bool aligned) {
  return aligned ? reinterpret_cast<const void*>(&PlaneRing<X, ForwardRing<X>, true>)
                 : reinterpret_cast<const void*>(&PlaneRing<X, ForwardRing<X>, false>);
}

template const void* PlaneRingForwardKernel<F32>(bool);
template const void* PlaneRingForwardKernel<F16>(bool);
template const void* PlaneRingForwardKernel<BF16>(bool);

}  // namespace norm_device
