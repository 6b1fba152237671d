#include "server/observability/logging.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/observability/json_text.h"

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

/// Whether a value stands in a text line as it is: visible ASCII that is no part of the line's own syntax.
bool IsPlain(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '"' && c != '=';
  });
}

}  // namespace

std::string FormatLogMessage(LogFormat format, absl::string_view message, Logger::Fields fields) {
  std::string line;
  if (format == LogFormat::kJson) {
    line = "\"message\":";
    AppendJsonString(message, &line);
    for (const Logger::Field& field : fields) {
      line += ',';
      AppendJsonString(field.first, &line);
      line += ':';
      AppendJsonString(field.second, &line);
    }
    return line;
  }
  line = std::string(message);
  for (const Logger::Field& field : fields) {
    absl::StrAppend(&line, " ", field.first, "=",
                    IsPlain(field.second) ? field.second : AsciiJsonString(field.second));
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

void Logger::Write(LogLevel level, absl::string_view message, Fields fields) const {
  impl_->Write(level, message, fields);
}
void Logger::Debug(absl::string_view message, Fields fields) const {
  Write(LogLevel::kDebug, message, fields);
}
void Logger::Info(absl::string_view message, Fields fields) const {
  Write(LogLevel::kInfo, message, fields);
}
void Logger::Warning(absl::string_view message, Fields fields) const {
  Write(LogLevel::kWarning, message, fields);
}
void Logger::Error(absl::string_view message, Fields fields) const {
  Write(LogLevel::kError, message, fields);
}

}  // namespace norm::server
