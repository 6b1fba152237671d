// Caller-provided scratch and the stream handle, free of CUDA headers.
#pragma once

#include <cstddef>

struct CUstream_st;

namespace norm {

/// A cudaStream_t. Never the default stream inside this library.
using StreamHandle = CUstream_st*;

inline constexpr size_t kWorkspaceAlignment = 256;

/// Scratch memory, undefined before and after a call: device memory for CUDA entry points, host
/// memory for CPU ones.
struct Workspace {
  void* data = nullptr;
  size_t size_bytes = 0;
};

}  // namespace norm
