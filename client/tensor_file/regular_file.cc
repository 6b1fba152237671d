#include "client/tensor_file/regular_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace norm::client {
namespace {

constexpr int64_t kCopyBytes = 1 << 20;
constexpr int kMaxLinks = 40;  // as the kernel's own limit

absl::Status WriteBytes(int descriptor, const std::string& path,
                        absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status CopyRange(int descriptor, const std::string& path, const FileRange& range) {
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(range.size_bytes, kCopyBytes)));
  for (int64_t done = 0; done < range.size_bytes;) {
    const int64_t size = std::min(range.size_bytes - done, kCopyBytes);
    const absl::Span<std::byte> part = absl::MakeSpan(buffer.data(), static_cast<size_t>(size));
    absl::Status status = range.file->ReadAt(range.offset + done, part);
    if (status.ok()) status = WriteBytes(descriptor, path, part);
    if (!status.ok()) return status;
    done += size;
  }
  return absl::OkStatus();
}

absl::Status WritePieces(int descriptor, const std::string& path,
                         const std::vector<FilePiece>& pieces) {
  for (const FilePiece& piece : pieces) {
    const FileRange* range = std::get_if<FileRange>(&piece);
    absl::Status status =
        range != nullptr
            ? CopyRange(descriptor, path, *range)
            : WriteBytes(descriptor, path, std::get<absl::Span<const std::byte>>(piece));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // pipes
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

absl::StatusOr<std::shared_ptr<std::byte[]>> RegularFile::Map(int64_t offset,
                                                              int64_t size_bytes) const {
  const int64_t before = offset % ::sysconf(_SC_PAGESIZE);
  const auto length = static_cast<size_t>(before + size_bytes);
  void* const memory =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor_, offset - before);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path_));
  return std::shared_ptr<std::byte[]>(static_cast<std::byte*>(memory) + before,
                                      [memory, length](std::byte*) { ::munmap(memory, length); });
}

std::string CanonicalPath(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path name = fs::absolute(path, error);
  // weakly_canonical leaves a link alone whose target is not there yet.
  for (int links = 0; links < kMaxLinks; ++links) {
    const fs::path resolved = fs::weakly_canonical(name, error);
    name = error ? name.lexically_normal() : resolved;
    const fs::path target = fs::read_symlink(name, error);
    if (error) break;
    name = name.parent_path() / target;
  }
  return name.string();
}

absl::Status WriteFile(const std::string& path, const std::vector<FilePiece>& pieces) {
  const auto failed = [&] {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  };
  struct stat attributes = {};
  const bool exists = ::stat(path.c_str(), &attributes) == 0;
  if (!exists && errno != ENOENT) return failed();
  const bool in_place = exists && !S_ISREG(attributes.st_mode);
  const std::string final_path = in_place ? path : CanonicalPath(path);
  const std::string target = in_place ? path : absl::StrCat(final_path, ".partial.", ::getpid());
  const int flags = in_place ? O_WRONLY | O_CLOEXEC : O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  const int descriptor = ::open(target.c_str(), flags, 0666);
  if (descriptor < 0) return failed();
  absl::Status status;
  if (exists && !in_place && ::fchmod(descriptor, attributes.st_mode & 0777) != 0)
    status = failed();
  if (status.ok()) status = WritePieces(descriptor, path, pieces);
  if (::close(descriptor) != 0 && status.ok()) status = failed();
  if (in_place) return status;
  if (status.ok() && ::rename(target.c_str(), final_path.c_str()) != 0) status = failed();
  if (!status.ok()) ::unlink(target.c_str());
  return status;
}

}  // namespace norm::client
