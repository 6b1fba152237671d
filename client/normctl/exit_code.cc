#include "client/normctl/exit_code.h"

#include <algorithm>
#include <iostream>
#include <string>

#include "norm/client/client.h"

namespace norm::normctl {

ExitCode ReportError(const absl::Status& status) {
  std::string message(status.message());
  std::replace_if(
      message.begin(), message.end(),
      [](char symbol) { return static_cast<unsigned char>(symbol) < 0x20; }, ' ');
  const bool unreachable = client::IsServerUnreachable(status);
  std::cerr << "normctl: " << (unreachable ? "server unreachable: " : "")
            << absl::StatusCodeToString(status.code()) << ": " << message;
  // What nobody has received is in nobody's log.
  if (const std::string id = client::RequestId(status); !unreachable && !id.empty()) {
    std::cerr << " (request id " << id << ")";
  }
  std::cerr << '\n';
  return unreachable ? kServerUnreachable : kFailure;
}

}  // namespace norm::normctl
