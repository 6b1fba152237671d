// Tensors of results, where the transport received them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "norm/client/tensor.h"

namespace norm::client {

/// A C-contiguous tensor as it came: its bytes lie in the buffers of the transport, in runs, and
/// are copied only when asked for.
///
/// Ownership: copies share the buffers, those of one result too: they are held until the last copy
///            of any of its tensors is gone.
/// Threads:   const use from several threads.
class ResultTensor {
 public:
  using Run = absl::Span<const std::byte>;

  /// The bytes of `runs`, one after another, are the elements in C order; `owner` keeps runs and
  /// bytes alive. Errors: INVALID_ARGUMENT for a shape that no tensor has (see
  /// TensorView::Validate) and for a number of bytes that is not that of the shape.
  static absl::StatusOr<ResultTensor> Over(absl::Span<const Run> runs, DType dtype,
                                           std::vector<int64_t> shape,
                                           std::shared_ptr<const void> owner);

  /// The bytes of `tensor`, in one run and shared.
  static ResultTensor Of(Tensor tensor);

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t elements() const { return elements_; }
  int64_t size_bytes() const { return elements_ * static_cast<int64_t>(DTypeSize(dtype_)); }

  /// The bytes of the elements in C order. A run begins at any address and ends anywhere, also
  /// inside an element. Valid while a copy of this object lives.
  absl::Span<const Run> runs() const { return runs_; }

  /// Writes the elements in C order to `destination` (size_bytes() bytes).
  void CopyTo(std::byte* destination) const;
  /// A copy in one piece. Errors: RESOURCE_EXHAUSTED where memory ends.
  absl::StatusOr<Tensor> ToTensor() const;

 private:
  ResultTensor() = default;

  DType dtype_ = DType::kF32;
  std::vector<int64_t> shape_;
  int64_t elements_ = 0;
  absl::Span<const Run> runs_;
  std::shared_ptr<const void> owner_;
};

}  // namespace norm::client
