#include "server/observability/logging.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace norm::server {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

/// A JSON string literal; bytes that are no UTF-8 become U+FFFD.
std::string Quoted(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string FormatLogMessage(LogFormat format, absl::string_view message, Logger::Fields fields) {
  std::string line;
  if (format == LogFormat::kJson) {
    line = absl::StrCat("\"message\":", Quoted(message));
    for (const Logger::Field& field : fields) {
      absl::StrAppend(&line, ",", Quoted(field.first), ":", Quoted(field.second));
    }
    return line;
  }
  line = std::string(message);
  for (const Logger::Field& field : fields) {
    const bool plain = field.second.find_first_of(" \t\n\"=") == std::string::npos;
    absl::StrAppend(&line, " ", field.first, "=", plain ? field.second : Quoted(field.second));
  }
  return line;
}

class Logger::Impl {
 public:
  explicit Impl(LogOptions options)
      : format_(options.format),
        logger_("normd", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger_.set_level(ToSpdlog(options.level));
    logger_.set_pattern(format_ == LogFormat::kJson
                            ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})"
                            : "%Y-%m-%dT%H:%M:%S.%e %l %v");
    logger_.flush_on(spdlog::level::debug);
  }

  void Write(LogLevel level, absl::string_view message, Fields fields) {
    const spdlog::level::level_enum spdlog_level = ToSpdlog(level);
    if (!logger_.should_log(spdlog_level)) return;
    logger_.log(spdlog_level, "{}", FormatLogMessage(format_, message, fields));
  }

 private:
  LogFormat format_;
  spdlog::logger logger_;
};

Logger::Logger(LogOptions options) : impl_(std::make_unique<Impl>(options)) {}
Logger::~Logger() = default;

void Logger::Debug(absl::string_view message, Fields fields) const {
  impl_->Write(LogLevel::kDebug, message, fields);
}
void Logger::Info(absl::string_view message, Fields fields) const {
  impl_->Write(LogLevel::kInfo, message, fields);
}
void Logger::Warning(absl::string_view message, Fields fields) const {
  impl_->Write(LogLevel::kWarning, message, fields);
}
void Logger::Error(absl::string_view message, Fields fields) const {
  impl_->Write(LogLevel::kError, message, fields);
}

}  // namespace norm::server
