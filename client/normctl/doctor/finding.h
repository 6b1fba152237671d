// What `normctl doctor` has to say about one thing that it looked at.
#pragma once

#include <cstdint>
#include <string>

namespace norm::normctl {

/// kOk: as it should be. kNote: worth knowing. kWarning: works, but worse than it could. kError: does not
/// work.
enum class Severity : uint8_t { kOk, kNote, kWarning, kError };
/// "ok", "note", "warning", "error".
const char* SeverityName(Severity severity);

struct Finding {
  Severity severity = Severity::kOk;
  std::string check;  // "driver", "cuda:0 image", "port": what was looked at
  std::string seen;
  std::string cure;  // empty where nothing is to be done
};

}  // namespace norm::normctl
