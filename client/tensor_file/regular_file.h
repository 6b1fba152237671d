// Files read at offsets, and files that appear only when they are complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace norm::client {

/// An open file for reading. Errors carry the path and the system's message; a missing file is
/// NOT_FOUND.
class RegularFile {
 public:
  static absl::StatusOr<RegularFile> Open(const std::string& path);
  ~RegularFile();
  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&&) = delete;

  const std::string& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }
  /// Fills `destination` from `offset`. Errors: DATA_LOSS when the file ends before.
  absl::Status ReadAt(int64_t offset, absl::Span<std::byte> destination) const;

 private:
  RegularFile(std::string path, int descriptor, int64_t size_bytes);

  std::string path_;
  int descriptor_;
  int64_t size_bytes_;
};

/// Writes `pieces` one after another to a new file beside `path`, then gives it that name. A path
/// that is there and is no regular file (a device, a pipe) is written directly.
absl::Status WriteFile(const std::string& path,
                       const std::vector<absl::Span<const std::byte>>& pieces);

}  // namespace norm::client
