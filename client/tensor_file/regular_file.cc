#include "client/tensor_file/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

namespace norm::client {
namespace {

absl::Status WritePieces(int descriptor, const std::string& path,
                         const std::vector<absl::Span<const std::byte>>& pieces) {
  for (absl::Span<const std::byte> piece : pieces) {
    while (!piece.empty()) {
      const ssize_t written = ::write(descriptor, piece.data(), piece.size());
      if (written < 0) {
        if (errno == EINTR) continue;
        return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
      }
      piece.remove_prefix(static_cast<size_t>(written));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  struct stat attributes = {};
  if (::fstat(descriptor, &attributes) != 0) {
    const int error = errno;
    ::close(descriptor);
    return absl::ErrnoToStatus(error, absl::StrCat("cannot stat ", path));
  }
  if (!S_ISREG(attributes.st_mode)) {
    ::close(descriptor);
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  return RegularFile(path, descriptor, attributes.st_size);
}

RegularFile::RegularFile(std::string path, int descriptor, int64_t size_bytes)
    : path_(std::move(path)), descriptor_(descriptor), size_bytes_(size_bytes) {}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_) {}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

absl::Status RegularFile::ReadAt(int64_t offset, absl::Span<std::byte> destination) const {
  while (!destination.empty()) {
    const ssize_t read = ::pread(descriptor_, destination.data(), destination.size(), offset);
    if (read < 0) {
      if (errno == EINTR) continue;
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
    }
    if (read == 0)
      return absl::DataLossError(
          absl::StrCat(path_, " ends at byte ", offset, ", within its contents"));
    destination.remove_prefix(static_cast<size_t>(read));
    offset += read;
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path,
                       const std::vector<absl::Span<const std::byte>>& pieces) {
  struct stat attributes = {};
  const bool in_place = ::stat(path.c_str(), &attributes) == 0 && !S_ISREG(attributes.st_mode);
  const std::string target = in_place ? path : absl::StrCat(path, ".partial.", ::getpid());
  const int flags = in_place ? O_WRONLY | O_CLOEXEC : O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  const int descriptor = ::open(target.c_str(), flags, 0666);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  absl::Status status = WritePieces(descriptor, path, pieces);
  if (::close(descriptor) != 0 && status.ok())
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  if (in_place) return status;
  if (status.ok() && ::rename(target.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  if (!status.ok()) ::unlink(target.c_str());
  return status;
}

}  // namespace norm::client
