// Log lines of the server: one object, passed by reference.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace norm::server {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
};

/// Writes to stderr, one line per call, with fields as key=value (text) or members (JSON).
///
/// Threads:  safe to use from several at once.
class Logger {
 public:
  using Field = std::pair<absl::string_view, std::string>;
  using Fields = absl::Span<const Field>;

  explicit Logger(LogOptions options);
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  void Write(LogLevel level, absl::string_view message, Fields fields) const;
  void Debug(absl::string_view message, Fields fields = {}) const;
  void Info(absl::string_view message, Fields fields = {}) const;
  void Warning(absl::string_view message, Fields fields = {}) const;
  void Error(absl::string_view message, Fields fields = {}) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The line without its time and level, as Logger writes it: what tests look at.
std::string FormatLogMessage(LogFormat format, absl::string_view message, Logger::Fields fields);

}  // namespace norm::server
