// Checks that every op's Validate is made of. Each message names the field, the rule and the
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "norm/kernels/dtype.h"
#include "norm/kernels/status.h"
#include "norm/kernels/workspace.h"

namespace norm::internal {

/// One tensor argument: its field name, address and size. A null address means the argument is
/// absent.
struct TensorArgument {
  TensorArgument(const char* field, const void* address, int64_t count, DType dtype)
      : TensorArgument(field, address, count, DTypeSize(dtype)) {}
  TensorArgument(const char* field, const void* address, int64_t count, size_t bytes_per_element)
      : name(field), data(address), elements(count), element_bytes(bytes_per_element) {}

  const char* name;
  const void* data;
  int64_t elements;
  size_t element_bytes;
};

/// An output and the inputs that it may replace exactly (same address, same bytes).
struct OutputArgument {
  TensorArgument tensor;
  std::initializer_list<const void*> may_equal;
};

Status InvalidArgument(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// Known dtypes, and a weight dtype that goes with `dtype`.
Status CheckDTypes(DType dtype, DType weight_dtype);
/// Finite and >= 0.
Status CheckEps(double eps);
Status CheckAtLeast(const char* name, int64_t value, int64_t minimum);
/// Every factor is >= 0 and the product, times `element_bytes`, fits in 63 bits. The product is 0
/// if any factor is.
Status CheckTensorBytes(std::initializer_list<int64_t> factors, DType dtype);

/// Present unless the tensor has no elements, and aligned to its element.
Status CheckRequired(const TensorArgument& tensor);
/// Aligned to its element when present.
Status CheckOptional(const TensorArgument& tensor);
/// `second` is present if and only if `first` is.
Status CheckTogether(const TensorArgument& first, const TensorArgument& second);
Status CheckAbsent(const char* name, const void* data, const char* rule);

/// No output overlaps another output, nor an input except where `may_equal` allows it.
Status CheckAliasing(std::initializer_list<TensorArgument> inputs,
                     std::initializer_list<OutputArgument> outputs);

/// At least `needed_bytes` at kWorkspaceAlignment; anything will do when none are needed.
Status CheckWorkspace(Workspace workspace, size_t needed_bytes);

}  // namespace norm::internal
