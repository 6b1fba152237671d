#include "proto/credentials/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace norm::credentials {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 20;

int64_t ToNs(const timespec& time) { return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec; }

}  // namespace

absl::Status Violation(const NamedFile& file, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(file.setting, ": '", file.path, "' ", rule));
}

absl::StatusOr<std::string> ReadFile(const NamedFile& file) {
  const auto unreadable = [&file] {
    return Violation(file, absl::StrCat("cannot be read: ", std::strerror(errno)));
  };
  // A FIFO would hold the open until somebody writes.
  const int fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return unreadable();
  const absl::Cleanup close_it = [fd] { close(fd); };
  struct stat facts {};
  if (fstat(fd, &facts) != 0) return unreadable();
  if (!S_ISREG(facts.st_mode)) return Violation(file, "is not a regular file");
  std::string bytes;
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return unreadable();
    if (got == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(got));
    if (static_cast<int64_t>(bytes.size()) > kMaxBytes) {
      return Violation(file, absl::StrCat("has more than ", kMaxBytes, " bytes"));
    }
  }
}

FileStamp StampOf(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) return {};
  return {.device = facts.st_dev,
          .inode = facts.st_ino,
          .size = facts.st_size,
          .modified_ns = ToNs(facts.st_mtim),
          .changed_ns = ToNs(facts.st_ctim)};
}

std::string Exposure(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) return "";
  const mode_t mode = facts.st_mode & 07777;
  if ((mode & S_IWOTH) != 0) return absl::StrFormat("writable by every user (mode %04o)", mode);
  if ((mode & S_IROTH) != 0) return absl::StrFormat("readable by every user (mode %04o)", mode);
  if ((mode & S_IWGRP) != 0) return absl::StrFormat("writable by its group (mode %04o)", mode);
  return "";
}

}  // namespace norm::credentials
