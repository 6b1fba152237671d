// Tensors too large to build on the host: a block of rows repeated in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "norm/cuda/device_buffer.h"
#include "norm/cuda/stream.h"

namespace norm::testing {

/// Device memory of `rows` rows that repeat the rows of `block`.
///
/// Ownership: owns the memory; `stream` must outlive it. Failures are test failures.
class RepeatedRows {
 public:
  RepeatedRows(const cuda::Stream& stream, const std::vector<std::byte>& block, size_t row_bytes,
               int64_t rows);
  /// Memory of the same size, filled with bytes that no result has.
  RepeatedRows(const cuda::Stream& stream, size_t row_bytes, int64_t rows);

  void* data() const { return buffer_.data(); }
  /// The bytes of rows [first, first + count).
  std::vector<std::byte> Read(int64_t first, int64_t count) const;
  /// The first row whose bytes differ from those of row (index % rows of `block`), or -1.
  int64_t FirstDifference(const std::vector<std::byte>& block) const;

 private:
  cuda::StreamView stream_;
  size_t row_bytes_;
  int64_t rows_;
  cuda::DeviceBuffer buffer_;
};

}  // namespace norm::testing
