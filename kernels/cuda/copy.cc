#include "norm/cuda/copy.h"

#include "norm/cuda/cuda_status.h"

namespace norm::cuda {

Status CopyAsync(void* destination, const void* source, size_t size_bytes, StreamView stream) {
  if (size_bytes == 0) return Status();
  return ToStatus(cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDefault, stream.get()),
                  "cudaMemcpyAsync");
}

Status FillAsync(void* destination, std::byte value, size_t size_bytes, StreamView stream) {
  if (size_bytes == 0) return Status();
  return ToStatus(
      cudaMemsetAsync(destination, std::to_integer<int>(value), size_bytes, stream.get()),
      "cudaMemsetAsync");
}

}  // namespace norm::cuda
