#include "batch_norm/batch_norm_plane_ring.cuh"

namespace norm_device {

template <typename X>
const void* PlaneRingBackwardKernel(bool aligned) {
  return aligned ? reinterpret_cast<const void*>(&PlaneRing<X, BackwardRing<X>, true>)
                 : reinterpret_cast<const void*>(&PlaneRing<X, BackwardRing<X>, false>);
}

template const void* PlaneRingBackwardKernel<F32>(bool);
template const void* PlaneRingBackwardKernel<F16>(bool);
template const void* PlaneRingBackwardKernel<BF16>(bool);

}  // namespace norm_device
