#include "server/transport/tensor_check.h"

#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "proto/codec/dtype_mapping.h"
#include "server/transport/field_error.h"

namespace norm::server {
namespace {

/// More dimensions than any framework has; keeps messages and loops short.
constexpr int kMaxRank = 64;
/// Of a tensor in rows, whose shape is a claim without bytes behind it.
constexpr int64_t kMaxBytesInRows = int64_t{1} << 56;

}  // namespace

absl::StatusOr<CheckedTensor> CheckTensor(absl::string_view field, const norm::v1::Tensor& tensor,
                                          const wire::ReceivedMessage& message, Transfer transfer) {
  const std::optional<DType> dtype = wire::FromProto(tensor.dtype());
  if (!dtype.has_value()) {
    return InvalidField(
        absl::StrCat(field, ".dtype"),
        absl::StrCat(static_cast<int>(tensor.dtype()),
                     " is not a known dtype (f32 = 1, f16 = 2, bf16 = 3, f64 = 4)"));
  }
  const std::string shape_field = absl::StrCat(field, ".shape");
  if (tensor.shape_size() < 1 || tensor.shape_size() > kMaxRank) {
    return InvalidField(shape_field, absl::StrCat("has rank ", tensor.shape_size(),
                                                  ", must have rank 1 to ", kMaxRank));
  }
  for (int i = 0; i < tensor.shape_size(); ++i) {
    if (tensor.shape(i) < 0) {
      return InvalidField(shape_field,
                          absl::StrCat("dimension ", i, " is ", tensor.shape(i), ", must be >= 0"));
    }
  }
  int64_t nonzero_product = static_cast<int64_t>(DTypeSize(*dtype));
  int64_t elements = 1;
  for (const int64_t dimension : tensor.shape()) {
    if (dimension == 0) {
      elements = 0;
      continue;
    }
    if (nonzero_product > std::numeric_limits<int64_t>::max() / dimension) {
      return InvalidField(shape_field,
                          absl::StrCat(ShapeText(tensor.shape()), " of ", DTypeName(*dtype),
                                       " overflows: its bytes must be < 2^63"));
    }
    nonzero_product *= dimension;
  }
  const wire::Payload& payload = message.payload(tensor);
  const int64_t expected_bytes = elements == 0 ? 0 : nonzero_product;
  if (transfer == Transfer::kInRows) {
    if (payload.size_bytes != 0) {
      return InvalidField(
          absl::StrCat(field, ".data"),
          absl::StrCat("has ", payload.size_bytes,
                       " bytes, must be empty: a chunked request sends it in rows"));
    }
    if (nonzero_product > kMaxBytesInRows) {
      return InvalidField(shape_field,
                          absl::StrCat(ShapeText(tensor.shape()), " of ", DTypeName(*dtype),
                                       " has more than 2^56 bytes"));
    }
  } else if (payload.size_bytes != expected_bytes) {
    return InvalidField(
        absl::StrCat(field, ".data"),
        absl::StrCat("has ", payload.size_bytes, " bytes != ", expected_bytes, " bytes of shape ",
                     ShapeText(tensor.shape()), " in ", DTypeName(*dtype)));
  }
  CheckedTensor checked;
  checked.dtype = *dtype;
  checked.shape.assign(tensor.shape().begin(), tensor.shape().end());
  checked.elements = elements == 0 ? 0 : nonzero_product / static_cast<int64_t>(DTypeSize(*dtype));
  checked.payload = &payload;
  return checked;
}

}  // namespace norm::server
