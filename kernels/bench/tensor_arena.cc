#include "bench/tensor_arena.h"

#include <algorithm>
#include <utility>

namespace norm::bench {

void TensorArena::BeginCase() {
  for (auto& [name, piece] : pieces_) piece.in_use = false;
}

Result<void*> TensorArena::Take(const std::string& name, int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  Piece& piece = pieces_[name];
  piece.in_use = true;
  if (piece.buffer.size_bytes() >= size) return piece.buffer.data();
  NORM_RETURN_IF_ERROR(piece.buffer.Close());
  piece.buffer = cuda::DeviceBuffer();
  Result<cuda::DeviceBuffer> buffer = cuda::DeviceBuffer::Allocate(size, device_);
  if (!buffer.ok() && buffer.status().code() == StatusCode::kOutOfMemory) {
    for (auto& [other_name, other] : pieces_) {
      if (other.in_use) continue;
      NORM_RETURN_IF_ERROR(other.buffer.Close());
      other.buffer = cuda::DeviceBuffer();
    }
    buffer = cuda::DeviceBuffer::Allocate(size, device_);
  }
  NORM_RETURN_IF_ERROR(buffer.status());
  piece.buffer = std::move(buffer).value();
  return piece.buffer.data();
}

}  // namespace norm::bench
