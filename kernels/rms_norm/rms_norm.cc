#include "norm/kernels/rms_norm.h"

#include "row_norm/row_norm.h"

namespace norm {

Status Validate(const RmsNormForwardArgs& args) {
  return internal::Validate(internal::ToRowNorm(args));
}

Status Validate(const RmsNormBackwardArgs& args) {
  return internal::Validate(internal::ToRowNorm(args));
}

}  // namespace norm
