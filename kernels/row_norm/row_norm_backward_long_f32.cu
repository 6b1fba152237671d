// Row-norm backward of long rows for f32 activations.
#include "row_norm/row_norm_backward_long_kernels.cuh"

namespace norm_device {

template <>
const void* LongBackwardKernel<F32>(BackwardLaunchKind launch, RowKind kind,
                                    const RingKernel& kernel) {
  return SelectLongKernel<F32>(launch, kind, kernel);
}

}  // namespace norm_device
