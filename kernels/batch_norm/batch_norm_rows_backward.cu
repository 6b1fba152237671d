#include "batch_norm/batch_norm_rows_backward.cuh"

namespace norm_device {

template <typename X>
const void* RowsBackwardKernel(bool bulk, bool recompute) {
  if (recompute) {
    return bulk ? reinterpret_cast<const void*>(&rows::BackwardKernel<X, true, true>)
                : reinterpret_cast<const void*>(&rows::BackwardKernel<X, false, true>);
  }
  return bulk ? reinterpret_cast<const void*>(&rows::BackwardKernel<X, true, false>)
              : reinterpret_cast<const void*>(&rows::BackwardKernel<X, false, false>);
}

template const void* RowsBackwardKernel<F32>(bool, bool);
template const void* RowsBackwardKernel<F16>(bool, bool);
template const void* RowsBackwardKernel<BF16>(bool, bool);

}  // namespace norm_device
