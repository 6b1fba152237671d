// A value that is made of files, and made anew when they change.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/credentials/secret_file.h"

namespace norm::credentials {

enum class Look : uint8_t { kSame, kReplaced };

/// Threads:  `value` from any; Load, then Look, from one at a time.
template <typename Value>
class WatchedFiles {
 public:
  /// `read` makes the value of what `paths` hold now.
  WatchedFiles(std::vector<std::string> paths, std::function<absl::StatusOr<Value>()> read)
      : paths_(std::move(paths)), read_(std::move(read)) {}

  /// Reads for the first time.
  absl::Status Load() { return Replace(Stamps()); }

  /// Reads again when a file has changed since it was read. What is refused is read at every look, since
  /// the reason may pass: a certificate becomes valid. Errors: those of `read`, once for each change;
  /// the value stays what it was.
  absl::StatusOr<Look> LookAgain() {
    std::vector<FileStamp> stamps = Stamps();
    if (stamps == stamps_) {
      refused_.clear();
      return Look::kSame;
    }
    const bool told = stamps == refused_;
    if (absl::Status status = Replace(stamps); !status.ok()) {
      refused_ = std::move(stamps);
      if (told) return Look::kSame;
      return status;
    }
    return Look::kReplaced;
  }

  std::shared_ptr<const Value> value() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }

 private:
  std::vector<FileStamp> Stamps() const {
    std::vector<FileStamp> stamps;
    stamps.reserve(paths_.size());
    for (const std::string& path : paths_) stamps.push_back(StampOf(path));
    return stamps;
  }

  /// `before`: stamps taken before the files are read. One that changes meanwhile differs from them,
  /// and is looked at again.
  absl::Status Replace(std::vector<FileStamp> before) {
    absl::StatusOr<Value> made = read_();
    if (!made.ok()) return made.status();
    stamps_ = std::move(before);
    refused_.clear();
    auto value = std::make_shared<const Value>(*std::move(made));
    const std::lock_guard lock(mutex_);
    value_.swap(value);  // the old one may end after the lock
    return absl::OkStatus();
  }

  const std::vector<std::string> paths_;
  const std::function<absl::StatusOr<Value>()> read_;
  std::vector<FileStamp> stamps_;   // of the value
  std::vector<FileStamp> refused_;  // of what was refused since
  mutable std::mutex mutex_;
  std::shared_ptr<const Value> value_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace norm::credentials
