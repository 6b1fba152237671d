#include "norm/kernels/layer_norm.h"

#include "row_norm/row_norm.h"

namespace norm {

Status Validate(const LayerNormForwardArgs& args) {
  return internal::Validate(internal::ToRowNorm(args));
}

Status Validate(const LayerNormBackwardArgs& args) {
  return internal::Validate(internal::ToRowNorm(args));
}

}  // namespace norm
