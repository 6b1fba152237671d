#include "client/normctl/doctor/doctor_report.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace norm::normctl {

const char* SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kOk:
      return "ok";
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      break;
  }
  return "error";
}

int Count(const std::vector<Finding>& findings, Severity severity) {
  return static_cast<int>(
      std::count_if(findings.begin(), findings.end(),
                    [severity](const Finding& finding) { return finding.severity == severity; }));
}

std::string DoctorText(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%-8s %s: %s\n", SeverityName(finding.severity), finding.check,
                          finding.seen);
    if (!finding.cure.empty()) absl::StrAppendFormat(&text, "%-8s -> %s\n", "", finding.cure);
  }
  absl::StrAppendFormat(&text, "%d errors, %d warnings\n", Count(findings, Severity::kError),
                        Count(findings, Severity::kWarning));
  return text;
}

std::string DoctorJson(const std::vector<Finding>& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back(
        {{"severity", SeverityName(finding.severity)},
         {"check", finding.check},
         {"seen", finding.seen},
         {"cure", finding.cure.empty() ? nlohmann::json(nullptr) : nlohmann::json(finding.cure)}});
  }
  const nlohmann::json report = {{"findings", list},
                                 {"errors", Count(findings, Severity::kError)},
                                 {"warnings", Count(findings, Severity::kWarning)}};
  return report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace norm::normctl
