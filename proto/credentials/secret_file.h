// Files that an operator gives to either end of a connection: read whole, with errors that name the
// setting and never show the content.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace norm::credentials {

/// A file and the setting that named it ("--tls_key"), for messages.
struct NamedFile {
  std::string setting;
  std::string path;
};

/// "--tls_key: '/etc/normd/key.pem' <rule>", with the code that Read gives: INVALID_ARGUMENT.
absl::Status Violation(const NamedFile& file, absl::string_view rule);

/// The bytes of a regular file of 1 MiB at most. Errors: INVALID_ARGUMENT with the system's reason
/// when it cannot be read, is no regular file, or is larger.
absl::StatusOr<std::string> ReadFile(const NamedFile& file);

/// What tells whether a file may have another content than before: its inode, size and the times of
/// its last changes. A file that is not there has a stamp too. Links are followed.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t size = -1;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;
  bool operator==(const FileStamp&) const = default;
};
FileStamp StampOf(const std::string& path);

/// Who else may see or change a secret in `path`: "readable by every user (mode 0644)", or nothing.
/// Readers of the file's group are taken to be meant.
std::string Exposure(const std::string& path);

}  // namespace norm::credentials
