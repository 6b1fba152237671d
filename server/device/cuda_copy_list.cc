#include "server/device/cuda_copy_list.h"

#include <cuda_runtime_api.h>

#include "norm/cuda/copy.h"
#include "norm/cuda/cuda_status.h"

namespace norm::server {

void CudaCopyList::Clear() {
  to_.clear();
  from_.clear();
  sizes_.clear();
}

void CudaCopyList::Add(void* to, const void* from, size_t size_bytes) {
  if (size_bytes == 0) {
    return;
  }
  to_.push_back(to);
  from_.push_back(from);
  sizes_.push_back(size_bytes);
}

Status CudaCopyList::Enqueue(cuda::StreamView stream) {
#if CUDART_VERSION >= 13000
  if (to_.size() > 1) {
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
    return cuda::ToStatus(cudaMemcpyBatchAsync(to_.data(), from_.data(), sizes_.data(), to_.size(),
                                               &attributes, &first, 1, stream.get()),
                          "cudaMemcpyBatchAsync");
  }
#endif
  for (size_t i = 0; i < to_.size(); ++i) {
    NORM_RETURN_IF_ERROR(cuda::CopyAsync(to_[i], from_[i], sizes_[i], stream));
  }
  return Status();
}

}  // namespace norm::server
