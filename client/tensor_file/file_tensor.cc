#include "client/tensor_file/file_tensor.h"

#include <utility>

namespace norm::client {
namespace {

/// Smaller tensors are read: a map costs a page fault for every few pages.
constexpr int64_t kMinMappedBytes = int64_t{16} << 20;

}  // namespace

absl::StatusOr<Tensor> TensorFromFile(const RegularFile& file, int64_t offset, DType dtype,
                                      std::vector<int64_t> shape) {
  int64_t size_bytes = static_cast<int64_t>(DTypeSize(dtype));
  for (const int64_t dimension : shape) size_bytes *= dimension;
  const bool aligned = offset % static_cast<int64_t>(DTypeSize(dtype)) == 0;
  if (size_bytes >= kMinMappedBytes && aligned && offset <= file.size_bytes() - size_bytes) {
    auto memory = file.Map(offset, size_bytes);
    // Some file systems have no maps.
    if (memory.ok()) return Tensor::Over(dtype, std::move(shape), *std::move(memory), size_bytes);
  }
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(dtype, std::move(shape));
  if (!tensor.ok()) return tensor;
  if (absl::Status status = file.ReadAt(offset, tensor->mutable_bytes()); !status.ok()) {
    return status;
  }
  return tensor;
}

}  // namespace norm::client
