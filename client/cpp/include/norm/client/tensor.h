// Tensors on the client's side: views of the caller's memory, and tensors that own theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "norm/kernels/dtype.h"

namespace norm::client {

/// True for the C++ types that can hold elements of `dtype`: float, double, and uint16_t as raw
/// bits of f16 and bf16.
template <typename T>
constexpr bool HoldsDType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return std::is_same_v<T, float>;
    case DType::kF64:
      return std::is_same_v<T, double>;
    case DType::kF16:
    case DType::kBF16:
      return std::is_same_v<T, uint16_t>;
  }
  return false;
}

/// A host array to send: element type, shape, strides, and where it lies. Any strides; the client
/// sends a C-contiguous copy of the logical values where the array is not contiguous.
///
/// Ownership: a view made of plain memory borrows it until the call that takes the view returns
/// (its bytes are copied when
///            the call starts). A view with an owner keeps the owner alive instead and is sent
///            without a copy; its memory must not change until the last copy of the owner is gone,
///            which can be after the call returned.
class TensorView {
 public:
  /// `bytes` holds the elements in C order; its size must be that of the shape (checked by the call
  /// that sends it).
  static TensorView Contiguous(DType dtype, absl::Span<const std::byte> bytes,
                               std::vector<int64_t> shape);

  /// float is f32, double is f64.
  static TensorView Of(absl::Span<const float> values, std::vector<int64_t> shape);
  static TensorView Of(absl::Span<const double> values, std::vector<int64_t> shape);

  /// Element (i, j, ...) lies at element index offset + i * strides[0] + j * strides[1] + ... of
  /// `memory`. Strides are in elements and may be 0 (broadcast) or negative. Every element must lie
  /// inside `memory` (checked by the call).
  static TensorView Strided(DType dtype, absl::Span<const std::byte> memory, int64_t offset,
                            std::vector<int64_t> shape, std::vector<int64_t> strides);

  /// The same view, kept alive by `owner` and sent without a copy where it is contiguous.
  TensorView OwnedBy(std::shared_ptr<const void> owner) const;

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }

  /// Errors: INVALID_ARGUMENT for rank 0, a negative dimension, too many elements for 63 bits of
  /// bytes, a byte count that does not match the shape, or an element outside the memory.
  absl::Status Validate() const;
  /// Size as sent. Valid views only.
  int64_t size_bytes() const;
  bool is_contiguous() const;
  /// The elements in C order. Contiguous valid views only.
  absl::Span<const std::byte> contiguous_bytes() const;
  /// Writes the elements in C order to `destination` (size_bytes() bytes). Valid views only.
  void CopyTo(std::byte* destination) const;

 private:
  TensorView() = default;

  DType dtype_ = DType::kF32;
  bool sized_by_shape_ =
      false;  // made by Contiguous: the memory must have exactly the size of the shape
  absl::Span<const std::byte> memory_;
  int64_t offset_ = 0;
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;  // one per dimension, in elements
  std::shared_ptr<const void> owner_;
};

/// A C-contiguous tensor that owns its memory (aligned to 64 bytes, or as Over was given it). Copies
/// share the memory.
class Tensor {
 public:
  /// Elements are not initialized. Errors: as TensorView::Validate.
  static absl::StatusOr<Tensor> Allocate(DType dtype, std::vector<int64_t> shape);
  /// The elements at `memory`, which is aligned to its elements. Errors: as TensorView::Validate,
  /// and INVALID_ARGUMENT for a byte count that does not match the shape.
  static absl::StatusOr<Tensor> Over(DType dtype, std::vector<int64_t> shape,
                                     std::shared_ptr<std::byte[]> memory, int64_t size_bytes);
  /// A contiguous copy of the values of `view`. Errors: as TensorView::Validate.
  static absl::StatusOr<Tensor> CopyOf(const TensorView& view);

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t elements() const { return elements_; }
  absl::Span<const std::byte> bytes() const;
  absl::Span<std::byte> mutable_bytes();

  /// The elements as T. Errors: FAILED_PRECONDITION when T does not hold the dtype (see
  /// HoldsDType).
  template <typename T>
  absl::StatusOr<absl::Span<const T>> Values() const {
    if (!HoldsDType<T>(dtype_)) return WrongType();
    return absl::MakeConstSpan(reinterpret_cast<const T*>(bytes().data()),
                               static_cast<size_t>(elements_));
  }

  /// A view that shares the memory: sent without a copy.
  TensorView view() const;

 private:
  Tensor() = default;
  absl::Status WrongType() const;

  DType dtype_ = DType::kF32;
  std::vector<int64_t> shape_;
  int64_t elements_ = 0;
  std::shared_ptr<std::byte[]> memory_;
};

/// The values of `tensor` in another element type, rounded once to nearest even; overflow becomes
/// infinity, NaN stays NaN.
absl::StatusOr<Tensor> Cast(const Tensor& tensor, DType dtype);

/// The values as doubles: exact for every dtype.
std::vector<double> ToDoubles(const Tensor& tensor);

}  // namespace norm::client
