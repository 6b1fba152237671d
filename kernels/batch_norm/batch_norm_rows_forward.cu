#include "batch_norm/batch_norm_rows_forward.cuh"

namespace norm_device {

template <typename X>
const void* RowsForwardKernel(bool bulk) {
  return bulk ? reinterpret_cast<const void*>(&rows::ForwardKernel<X, true>)
              : reinterpret_cast<const void*>(&rows::ForwardKernel<X, false>);
}

template const void* RowsForwardKernel<F32>(bool);
template const void* RowsForwardKernel<F16>(bool);
template const void* RowsForwardKernel<BF16>(bool);

}  // namespace norm_device
