#include "norm/client/tensor.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "element_count.h"

namespace norm::client {
namespace {

constexpr size_t kAlignment = 64;

std::vector<int64_t> ContiguousStrides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i > 1; --i) {
    // Wraps for shapes that Validate refuses; such strides are never used.
    strides[i - 2] = static_cast<int64_t>(static_cast<uint64_t>(strides[i - 1]) *
                                          static_cast<uint64_t>(shape[i - 1]));
  }
  return strides;
}

template <typename T>
absl::Span<const std::byte> AsBytes(const T* values, size_t count) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values), count * sizeof(T));
}

template <typename Word>
void CopyStrided(const std::byte* first, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& strides, std::byte* destination) {
  const size_t rank = shape.size();
  std::vector<int64_t> index(rank, 0);
  const int64_t inner = shape[rank - 1];
  const int64_t inner_stride = strides[rank - 1];
  int64_t base = 0;
  while (true) {
    const std::byte* row = first + base * static_cast<int64_t>(sizeof(Word));
    if (inner_stride == 1) {
      std::memcpy(destination, row, static_cast<size_t>(inner) * sizeof(Word));
    } else {
      for (int64_t i = 0; i < inner; ++i) {
        std::memcpy(destination + i * static_cast<int64_t>(sizeof(Word)),
                    row + i * inner_stride * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
      }
    }
    destination += inner * static_cast<int64_t>(sizeof(Word));
    // The next row: an odometer over all dimensions but the last.
    size_t dimension = rank - 1;
    while (dimension > 0) {
      --dimension;
      base += strides[dimension];
      if (++index[dimension] < shape[dimension]) break;
      base -= shape[dimension] * strides[dimension];
      index[dimension] = 0;
      if (dimension == 0) return;
    }
    if (rank == 1) return;
  }
}

}  // namespace

TensorView TensorView::Contiguous(DType dtype, absl::Span<const std::byte> bytes,
                                  std::vector<int64_t> shape) {
  TensorView view;
  view.dtype_ = dtype;
  view.sized_by_shape_ = true;
  view.memory_ = bytes;
  view.strides_ = ContiguousStrides(shape);
  view.shape_ = std::move(shape);
  return view;
}

TensorView TensorView::Of(absl::Span<const float> values, std::vector<int64_t> shape) {
  return Contiguous(DType::kF32, AsBytes(values.data(), values.size()), std::move(shape));
}

TensorView TensorView::Of(absl::Span<const double> values, std::vector<int64_t> shape) {
  return Contiguous(DType::kF64, AsBytes(values.data(), values.size()), std::move(shape));
}

TensorView TensorView::Strided(DType dtype, absl::Span<const std::byte> memory, int64_t offset,
                               std::vector<int64_t> shape, std::vector<int64_t> strides) {
  TensorView view;
  view.dtype_ = dtype;
  view.memory_ = memory;
  view.offset_ = offset;
  view.shape_ = std::move(shape);
  view.strides_ = std::move(strides);
  return view;
}

TensorView TensorView::OwnedBy(std::shared_ptr<const void> owner) const {
  TensorView view = *this;
  view.owner_ = std::move(owner);
  return view;
}

absl::Status TensorView::Validate() const {
  const size_t element_size = DTypeSize(dtype_);
  absl::StatusOr<int64_t> elements = CountElements(shape_, dtype_);
  if (!elements.ok()) return elements.status();
  if (strides_.size() != shape_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("number of strides ", strides_.size(),
                                                   " != number of dimensions ", shape_.size()));
  }
  const int64_t memory_bytes = static_cast<int64_t>(memory_.size());
  if (sized_by_shape_) {
    const int64_t expected = *elements * static_cast<int64_t>(element_size);
    if (memory_bytes != expected) {
      return absl::InvalidArgumentError(absl::StrCat("byte size ", memory_bytes, " != ", expected,
                                                     " of shape [", absl::StrJoin(shape_, ","),
                                                     "] ", DTypeName(dtype_)));
    }
    return absl::OkStatus();
  }
  if (*elements == 0) return absl::OkStatus();
  absl::int128 low = offset_;
  absl::int128 high = offset_;
  for (size_t i = 0; i < shape_.size(); ++i) {
    const absl::int128 reach = static_cast<absl::int128>(shape_[i] - 1) * strides_[i];
    (reach < 0 ? low : high) += reach;
  }
  if (low < 0 ||
      high >= static_cast<absl::int128>(memory_bytes / static_cast<int64_t>(element_size))) {
    return absl::InvalidArgumentError(
        absl::StrCat("offset ", offset_, ", shape [", absl::StrJoin(shape_, ","), "] and strides [",
                     absl::StrJoin(strides_, ","), "] reach outside the memory of ",
                     memory_bytes / static_cast<int64_t>(element_size), " elements"));
  }
  return absl::OkStatus();
}

int64_t TensorView::size_bytes() const {
  int64_t count = static_cast<int64_t>(DTypeSize(dtype_));
  for (int64_t dimension : shape_) count *= dimension;
  return count;
}

bool TensorView::is_contiguous() const {
  if (sized_by_shape_) return true;
  int64_t expected = 1;
  for (size_t i = shape_.size(); i > 0; --i) {
    if (shape_[i - 1] == 0) return true;
    if (shape_[i - 1] != 1 && strides_[i - 1] != expected) return false;
    expected *= shape_[i - 1];
  }
  return true;
}

absl::Span<const std::byte> TensorView::contiguous_bytes() const {
  const int64_t size = size_bytes();
  if (size == 0) return {};
  return memory_.subspan(static_cast<size_t>(offset_) * DTypeSize(dtype_),
                         static_cast<size_t>(size));
}

void TensorView::CopyTo(std::byte* destination) const {
  if (size_bytes() == 0) return;
  if (is_contiguous()) {
    const absl::Span<const std::byte> bytes = contiguous_bytes();
    std::memcpy(destination, bytes.data(), bytes.size());
    return;
  }
  const std::byte* first = memory_.data() + offset_ * static_cast<int64_t>(DTypeSize(dtype_));
  switch (DTypeSize(dtype_)) {
    case 2:
      return CopyStrided<uint16_t>(first, shape_, strides_, destination);
    case 4:
      return CopyStrided<uint32_t>(first, shape_, strides_, destination);
    default:
      return CopyStrided<uint64_t>(first, shape_, strides_, destination);
  }
}

namespace {

/// Large fresh memory costs most by the page.
void AdviseHugePages(std::byte* memory, size_t size_bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  constexpr size_t kSmallPage = 4096;
  if (size_bytes < 2 * kHugePage) return;
  auto* const begin = memory + (kSmallPage - reinterpret_cast<uintptr_t>(memory) % kSmallPage);
  // Only advice: where it is not taken the memory is as good.
  (void)::madvise(begin, (size_bytes - kSmallPage) / kSmallPage * kSmallPage, MADV_HUGEPAGE);
}

}  // namespace

absl::StatusOr<Tensor> Tensor::Allocate(DType dtype, std::vector<int64_t> shape) {
  absl::StatusOr<int64_t> elements = CountElements(shape, dtype);
  if (!elements.ok()) return elements.status();
  const size_t size_bytes = static_cast<size_t>(*elements) * DTypeSize(dtype);
  auto* memory = static_cast<std::byte*>(
      ::operator new (size_bytes + 1, std::align_val_t{kAlignment}, std::nothrow));
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a tensor of ", size_bytes, " bytes"));
  }
  AdviseHugePages(memory, size_bytes);
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.elements_ = *elements;
  tensor.memory_ = std::shared_ptr<std::byte[]>(
      memory, [](std::byte* bytes) { ::operator delete (bytes, std::align_val_t{kAlignment}); });
  return tensor;
}

absl::StatusOr<Tensor> Tensor::Over(DType dtype, std::vector<int64_t> shape,
                                    std::shared_ptr<std::byte[]> memory, int64_t size_bytes) {
  absl::StatusOr<int64_t> elements = CountElements(shape, dtype);
  if (!elements.ok()) return elements.status();
  const int64_t needed = *elements * static_cast<int64_t>(DTypeSize(dtype));
  if (size_bytes != needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("byte size ", size_bytes, " != ", needed, " of the shape"));
  }
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.elements_ = *elements;
  tensor.memory_ = std::move(memory);
  return tensor;
}

absl::StatusOr<Tensor> Tensor::CopyOf(const TensorView& view) {
  if (absl::Status status = view.Validate(); !status.ok()) return status;
  absl::StatusOr<Tensor> tensor = Allocate(view.dtype(), view.shape());
  if (tensor.ok()) view.CopyTo(tensor->mutable_bytes().data());
  return tensor;
}

absl::Span<const std::byte> Tensor::bytes() const {
  return absl::MakeConstSpan(memory_.get(), static_cast<size_t>(elements_) * DTypeSize(dtype_));
}

absl::Span<std::byte> Tensor::mutable_bytes() {
  return absl::MakeSpan(memory_.get(), static_cast<size_t>(elements_) * DTypeSize(dtype_));
}

TensorView Tensor::view() const {
  return TensorView::Contiguous(dtype_, bytes(), shape_).OwnedBy(memory_);
}

absl::Status Tensor::WrongType() const {
  return absl::FailedPreconditionError(
      absl::StrCat("elements are ", DTypeName(dtype_), ", asked for as another type"));
}

}  // namespace norm::client
