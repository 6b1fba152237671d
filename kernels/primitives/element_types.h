// Element types as compile-time tags that host code and device code both understand. Standard
// library only.
#pragma once

namespace norm_device {

struct F32 {};
struct F16 {};
struct BF16 {};
struct F64 {};

/// Activations of type X with weights of type W. Kernels exist for the pairs of
/// dispatch/dtype_dispatch.h only.
template <typename X, typename W>
struct ElementPair {
  using Activation = X;
  using Weight = W;
};

}  // namespace norm_device
