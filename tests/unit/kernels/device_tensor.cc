#include "tests/unit/kernels/device_tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "norm/cuda/copy.h"

namespace norm::testing {
namespace {

constexpr size_t kCompareBytes = size_t{256} << 20;

cuda::DeviceBuffer Allocate(const cuda::Stream& stream, size_t bytes) {
  Result<cuda::DeviceBuffer> buffer = cuda::DeviceBuffer::Allocate(bytes, stream.device());
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  return buffer.ok() ? std::move(buffer).value() : cuda::DeviceBuffer();
}

}  // namespace

RepeatedRows::RepeatedRows(const cuda::Stream& stream, size_t row_bytes, int64_t rows)
    : stream_(stream.view()),
      row_bytes_(row_bytes),
      rows_(rows),
      buffer_(Allocate(stream, row_bytes * static_cast<size_t>(rows))) {
  if (buffer_.data() == nullptr) return;
  EXPECT_TRUE(cuda::FillAsync(buffer_.data(), std::byte{0xA5}, buffer_.size_bytes(), stream_).ok());
}

RepeatedRows::RepeatedRows(const cuda::Stream& stream, const std::vector<std::byte>& block,
                           size_t row_bytes, int64_t rows)
    : RepeatedRows(stream, row_bytes, rows) {
  if (buffer_.data() == nullptr) return;
  auto* begin = static_cast<std::byte*>(buffer_.data());
  const size_t total = buffer_.size_bytes();
  size_t filled = std::min(block.size(), total);
  EXPECT_TRUE(cuda::CopyAsync(begin, block.data(), filled, stream_).ok());
  // Doubles the filled part, which stays a whole number of blocks until the last copy.
  while (filled < total) {
    const size_t bytes = std::min(filled, total - filled);
    EXPECT_TRUE(cuda::CopyAsync(begin + filled, begin, bytes, stream_).ok());
    filled += bytes;
  }
  EXPECT_TRUE(stream_.Synchronize().ok());
}

std::vector<std::byte> RepeatedRows::Read(int64_t first, int64_t count) const {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * row_bytes_);
  const auto* from =
      static_cast<const std::byte*>(buffer_.data()) + static_cast<size_t>(first) * row_bytes_;
  EXPECT_TRUE(cuda::CopyAsync(bytes.data(), from, bytes.size(), stream_).ok());
  EXPECT_TRUE(stream_.Synchronize().ok());
  return bytes;
}

int64_t RepeatedRows::FirstDifference(const std::vector<std::byte>& block) const {
  const auto block_rows = static_cast<int64_t>(block.size() / row_bytes_);
  const int64_t blocks_at_once =
      std::max<int64_t>(1, static_cast<int64_t>(kCompareBytes / block.size()));
  for (int64_t first = 0; first < rows_; first += blocks_at_once * block_rows) {
    const int64_t count = std::min(rows_ - first, blocks_at_once * block_rows);
    const std::vector<std::byte> got = Read(first, count);
    for (int64_t row = 0; row < count; row += block_rows) {
      const size_t begin = static_cast<size_t>(row) * row_bytes_;
      const size_t bytes = std::min(block.size(), got.size() - begin);
      if (std::memcmp(got.data() + begin, block.data(), bytes) == 0) continue;
      for (int64_t i = 0; i * static_cast<int64_t>(row_bytes_) < static_cast<int64_t>(bytes); ++i) {
        const size_t offset = static_cast<size_t>(i) * row_bytes_;
        if (std::memcmp(got.data() + begin + offset, block.data() + offset, row_bytes_) != 0) {
          return first + row + i;
        }
      }
    }
  }
  return -1;
}

}  // namespace norm::testing
