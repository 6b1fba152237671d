// Files read at offsets, and files that appear only when they are complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace norm::client {

/// An open file for reading. Errors carry the path and the system's message; a missing file is
/// NOT_FOUND, a pipe, device or folder INVALID_ARGUMENT without waiting for its other end.
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
  /// `size_bytes` bytes from `offset` as memory that outlives this object: pages are read when they
  /// are touched, and writes stay in memory. Aligned as `offset` is, to a page at most. The file
  /// must not be cut short meanwhile: touching what is gone is SIGBUS.
  absl::StatusOr<std::shared_ptr<std::byte[]>> Map(int64_t offset, int64_t size_bytes) const;

 private:
  RegularFile(std::string path, int descriptor, int64_t size_bytes);

  std::string path_;
  int descriptor_;
  int64_t size_bytes_;
};

/// A part of an open file; the file outlives it.
struct FileRange {
  const RegularFile* file = nullptr;
  int64_t offset = 0;
  int64_t size_bytes = 0;
};

using FilePiece = std::variant<absl::Span<const std::byte>, FileRange>;

/// Writes `pieces` one after another to a new file beside `path`, or beside what a link at `path`
/// leads to, then gives it that name and the permissions of the file that it replaces. A path that
/// is there and is no regular file (a device, a pipe) is written directly. Pieces may come from the
/// file at `path`.
absl::Status WriteFile(const std::string& path, const std::vector<FilePiece>& pieces);

/// The one absolute name of the file that writing to `path` changes or makes.
std::string CanonicalPath(const std::string& path);

}  // namespace norm::client
