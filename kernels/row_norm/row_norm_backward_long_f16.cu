// Row-norm backward of long rows for f16 activations.
#include "row_norm/row_norm_backward_long_kernels.cuh"

namespace norm_device {

template <>
const void* LongBackwardKernel<F16>(BackwardLaunchKind launch, RowKind kind,
                                    const RingKernel& kernel) {
  return SelectLongKernel<F16>(launch, kind, kernel);
}

}  // namespace norm_device
