#include "server/observability/appended_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace norm::server {
namespace {

constexpr char kStdout[] = "-";
constexpr int kPollMs = 100;

/// Does not wait for the reader of a pipe, neither here nor in writes.
int OpenForAppending(const std::string& path) {
  if (path == kStdout) return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  return open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
              0640);
}

}  // namespace

absl::StatusOr<AppendedFile> AppendedFile::Open(const std::string& path) {
  const int fd = OpenForAppending(path);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return AppendedFile(path, fd);
}

AppendedFile::AppendedFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {
  struct stat file {};
  regular_ = fstat(fd_, &file) == 0 && S_ISREG(file.st_mode);
}

AppendedFile::AppendedFile(AppendedFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      regular_(other.regular_),
      line_open_(other.line_open_) {}

AppendedFile::~AppendedFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status AppendedFile::Reopen() {
  if (!regular_ || path_ == kStdout) return absl::OkStatus();
  struct stat named {};
  struct stat held {};
  if (stat(path_.c_str(), &named) == 0 && fstat(fd_, &held) == 0 && named.st_ino == held.st_ino &&
      named.st_dev == held.st_dev) {
    return absl::OkStatus();
  }
  absl::StatusOr<AppendedFile> anew = Open(path_);
  if (!anew.ok()) return anew.status();
  std::swap(fd_, anew->fd_);
  std::swap(regular_, anew->regular_);
  line_open_ = false;
  return absl::OkStatus();
}

absl::Status AppendedFile::Write(absl::string_view lines, const std::function<bool()>& may_wait) {
  if (absl::Status status = Reopen(); !status.ok()) return status;
  std::string mended;
  if (line_open_) {
    mended = absl::StrCat("\n", lines);
    lines = mended;
  }
  while (!lines.empty()) {
    pollfd ready{fd_, POLLOUT, 0};
    if (poll(&ready, 1, kPollMs) == 0) {
      if (may_wait()) continue;
      return absl::UnavailableError(absl::StrCat(path_, " takes nothing"));
    }
    // A pipe that is ready has room for so much, and a write of more would wait for its reader.
    const size_t size = regular_ ? lines.size() : std::min<size_t>(lines.size(), PIPE_BUF);
    const ssize_t written = write(fd_, lines.data(), size);
    if (written < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
    }
    lines.remove_prefix(static_cast<size_t>(written));
    line_open_ = !lines.empty();
  }
  return absl::OkStatus();
}

}  // namespace norm::server
