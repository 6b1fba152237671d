#include "validation/argument_checks.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace norm::internal {
namespace {

bool IsKnown(DType dtype) { return DTypeSize(dtype) != 0; }

uintptr_t Address(const void* data) { return reinterpret_cast<uintptr_t>(data); }

uint64_t Bytes(const TensorArgument& tensor) {
  return static_cast<uint64_t>(tensor.elements) * tensor.element_bytes;
}

bool Overlap(const TensorArgument& a, const TensorArgument& b) {
  if (a.data == nullptr || b.data == nullptr || a.elements == 0 || b.elements == 0) {
    return false;
  }
  const uintptr_t a_begin = Address(a.data);
  const uintptr_t b_begin = Address(b.data);
  return a_begin <= b_begin ? b_begin - a_begin < Bytes(a) : a_begin - b_begin < Bytes(b);
}

Status OverlapError(const TensorArgument& output, const TensorArgument& other) {
  return InvalidArgument("%s [%p, %llu bytes] overlaps %s [%p, %llu bytes]", output.name,
                         output.data, static_cast<unsigned long long>(Bytes(output)), other.name,
                         other.data, static_cast<unsigned long long>(Bytes(other)));
}

}  // namespace

Status InvalidArgument(const char* format, ...) {
  char message[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(message, sizeof(message), format, values);
  va_end(values);
  return Status(StatusCode::kInvalidArgument, message);
}

Status CheckDTypes(DType dtype, DType weight_dtype) {
  if (!IsKnown(dtype)) {
    return InvalidArgument("dtype %d is not one of f32, f16, bf16, f64", static_cast<int>(dtype));
  }
  if (!IsKnown(weight_dtype) || !IsSupportedWeightDType(dtype, weight_dtype)) {
    return InvalidArgument("weight_dtype %s must be %s (the dtype of x) or f32",
                           DTypeName(weight_dtype), DTypeName(dtype));
  }
  return Status();
}

Status CheckEps(double eps) {
  if (!std::isfinite(eps) || eps < 0.0) {
    return InvalidArgument("eps %g must be finite and >= 0", eps);
  }
  return Status();
}

Status CheckAtLeast(const char* name, int64_t value, int64_t minimum) {
  if (value < minimum) {
    return InvalidArgument("%s %lld must be >= %lld", name, static_cast<long long>(value),
                           static_cast<long long>(minimum));
  }
  return Status();
}

Status CheckTensorBytes(std::initializer_list<int64_t> factors, DType dtype) {
  for (int64_t factor : factors) {
    if (factor == 0) {
      return Status();
    }
  }
  int64_t bytes = static_cast<int64_t>(DTypeSize(dtype));
  for (int64_t factor : factors) {
    if (__builtin_mul_overflow(bytes, factor, &bytes)) {
      char dims[128] = "";
      int used = 0;
      for (int64_t dim : factors) {
        used += std::snprintf(dims + used, sizeof(dims) - static_cast<size_t>(used), "%s%lld",
                              used == 0 ? "" : " * ", static_cast<long long>(dim));
      }
      return InvalidArgument("x of %s elements of %zu bytes exceeds 2^63 - 1 bytes", dims,
                             DTypeSize(dtype));
    }
  }
  return Status();
}

Status CheckOptional(const TensorArgument& tensor) {
  if (Address(tensor.data) % tensor.element_bytes != 0) {
    return InvalidArgument("%s address %p must be a multiple of its element's %zu bytes",
                           tensor.name, tensor.data, tensor.element_bytes);
  }
  return Status();
}

Status CheckRequired(const TensorArgument& tensor) {
  if (tensor.data == nullptr && tensor.elements > 0) {
    return InvalidArgument("%s is null, but %lld elements are required", tensor.name,
                           static_cast<long long>(tensor.elements));
  }
  return CheckOptional(tensor);
}

Status CheckTogether(const TensorArgument& first, const TensorArgument& second) {
  const bool has_first = first.data != nullptr;
  const bool has_second = second.data != nullptr;
  if (has_first != has_second && (first.elements > 0 || second.elements > 0)) {
    return InvalidArgument("%s is %s, but %s is %s: both or neither", first.name,
                           has_first ? "given" : "null", second.name,
                           has_second ? "given" : "null");
  }
  NORM_RETURN_IF_ERROR(CheckOptional(first));
  return CheckOptional(second);
}

Status CheckAbsent(const char* name, const void* data, const char* rule) {
  if (data != nullptr) {
    return InvalidArgument("%s is given, but %s", name, rule);
  }
  return Status();
}

Status CheckAliasing(std::initializer_list<TensorArgument> inputs,
                     std::initializer_list<OutputArgument> outputs) {
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    for (auto other = outputs.begin(); other != output; ++other) {
      if (Overlap(output->tensor, other->tensor)) {
        return OverlapError(output->tensor, other->tensor);
      }
    }
    for (const TensorArgument& input : inputs) {
      if (!Overlap(output->tensor, input)) {
        continue;
      }
      bool allowed = false;
      for (const void* equal : output->may_equal) {
        allowed = allowed || (equal == output->tensor.data && equal == input.data);
      }
      if (!allowed) {
        return OverlapError(output->tensor, input);
      }
    }
  }
  return Status();
}

Status CheckWorkspace(Workspace workspace, size_t needed_bytes) {
  if (needed_bytes == 0) {
    return Status();
  }
  if (workspace.data == nullptr || workspace.size_bytes < needed_bytes) {
    return InvalidArgument("workspace of %zu bytes, but %zu are needed",
                           workspace.data == nullptr ? size_t{0} : workspace.size_bytes,
                           needed_bytes);
  }
  if (Address(workspace.data) % kWorkspaceAlignment != 0) {
    return InvalidArgument("workspace address %p must be a multiple of %zu", workspace.data,
                           kWorkspaceAlignment);
  }
  return Status();
}

}  // namespace norm::internal
