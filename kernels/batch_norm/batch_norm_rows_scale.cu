#include "batch_norm/batch_norm_rows_scale.cuh"

namespace norm_device {
namespace {

template <typename X, int V>
const void* ScaleKernelOf(bool backward) {
  constexpr int kU = kRowsScaleUnroll;
  constexpr int kT = kRowsScaleThreads;
  return backward ? reinterpret_cast<const void*>(&rows::ScaleKernel<X, V, kU, true, kT>)
                  : reinterpret_cast<const void*>(&rows::ScaleKernel<X, V, kU, false, kT>);
}

}  // namespace

template <typename X>
const void* RowsScaleKernel(int granule, bool backward) {
  return granule == kRowsScaleGranule ? ScaleKernelOf<X, kRowsScaleGranule>(backward)
                                      : ScaleKernelOf<X, 1>(backward);
}

template const void* RowsScaleKernel<F32>(int, bool);
template const void* RowsScaleKernel<F16>(int, bool);
template const void* RowsScaleKernel<BF16>(int, bool);

}  // namespace norm_device
