// A file that grows by whole lines, whoever renames it meanwhile.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace norm::server {

/// Lines go to the end of the file in one write, so that several processes may share it. A file that
/// has been renamed or removed (logrotate) is made anew; one that was truncated (copytruncate) goes
/// on from its new end.
///
/// Threads:  of one.
class AppendedFile {
 public:
  /// `path`: a file that is made where there is none, or a pipe that somebody reads; "-" is stdout.
  /// Errors: what the system says.
  static absl::StatusOr<AppendedFile> Open(const std::string& path);
  AppendedFile(AppendedFile&& other) noexcept;
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;
  ~AppendedFile();

  /// Writes whole lines. Where the file takes nothing (a pipe whose reader stands still), waits as
  /// long as `may_wait` says so, asked ten times a second. Errors: what the system says, and
  /// UNAVAILABLE after such a wait; some of the lines may be there then, and what comes next begins on a new line.
  absl::Status Write(absl::string_view lines, const std::function<bool()>& may_wait);

 private:
  AppendedFile(std::string path, int fd);
  absl::Status Reopen();

  std::string path_;
  int fd_;
  bool regular_ = false;
  bool line_open_ = false;  // the last write broke off within a line
};

}  // namespace norm::server
