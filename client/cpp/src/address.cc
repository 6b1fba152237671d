#include "address.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "norm/client/client.h"

namespace norm::client {
namespace {

/// Targets of gRPC that hold a list themselves.
bool IsListOfIps(absl::string_view address) {
  return absl::StartsWith(address, "ipv4:") || absl::StartsWith(address, "ipv6:");
}

bool IsUnixSocket(absl::string_view address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
}

bool AllDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

/// What is wrong with a port, or nothing. gRPC 1.51 takes the port modulo 65536.
std::string CheckPort(absl::string_view port) {
  if (!AllDigits(port)) return absl::StrCat("port '", port, "' is not a number");
  int value = 0;
  if (!absl::SimpleAtoi(port, &value) || value < 1 || value > 65535)
    return absl::StrCat("port ", port, " is outside [1, 65535]");
  return "";
}

/// What is wrong with host:port, or nothing.
std::string CheckHostAndPort(absl::string_view text) {
  if (absl::StartsWith(text, "[")) {
    const size_t end = text.find("]:");
    if (end == absl::string_view::npos) return absl::StrCat("'", text, "' is not [IPv6]:port");
    const absl::string_view host = text.substr(1, end - 1);
    if (host.empty()) return "the host is empty";
    const absl::string_view digits = host.substr(0, host.find('%'));  // a zone follows
    if (!absl::StrContains(digits, ':') ||
        digits.find_first_not_of("0123456789abcdefABCDEF:.") != absl::string_view::npos) {
      return absl::StrCat("'", text, "' is not [IPv6]:port");
    }
    return CheckPort(text.substr(end + 2));
  }
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return "has no port: host:port is needed";
  const absl::string_view host = text.substr(0, colon);
  if (host.empty()) return "the host is empty";
  for (char symbol : host) {
    if (symbol == '/' || symbol == '@' || symbol == '[' || symbol == ']')
      return absl::StrCat("the host '", host, "' has a '", std::string(1, symbol), "'");
  }
  if (absl::StrContains(host, ':')) return "an IPv6 address stands in brackets, as [::1]:8470";
  return CheckPort(text.substr(colon + 1));
}

std::string FindMistake(absl::string_view address) {
  if (address.empty()) return "is empty: host:port is needed";
  for (char symbol : address) {
    if (absl::ascii_isspace(symbol) || absl::ascii_iscntrl(symbol))
      return "a space or control character is in it";
  }
  // gRPC 1.51 decodes the path and takes a comma in it for the end of the first of several.
  if (IsUnixSocket(address) &&
      (absl::StrContains(address, ',') || absl::StrContains(absl::AsciiStrToLower(address), "%2c")))
    return "gRPC can reach no Unix socket whose path has a comma: name it by a link without one";
  for (absl::string_view scheme : {"unix:", "unix-abstract:", "vsock:", "xds:"}) {
    if (absl::ConsumePrefix(&address, scheme)) return address.empty() ? "no path follows" : "";
  }
  if (absl::ConsumePrefix(&address, "dns:")) {
    if (absl::ConsumePrefix(&address, "//")) {
      const size_t slash = address.find('/');  // the name server ends there
      if (slash == absl::string_view::npos) return "no name follows";
      address.remove_prefix(slash + 1);
    }
    return CheckHostAndPort(address);
  }
  if (absl::ConsumePrefix(&address, "ipv4:") || absl::ConsumePrefix(&address, "ipv6:")) {
    for (absl::string_view one : absl::StrSplit(address, ',')) {
      if (std::string mistake = CheckHostAndPort(one); !mistake.empty()) return mistake;
    }
    return "";
  }
  return CheckHostAndPort(address);
}

}  // namespace

Targets SplitTargets(const std::string& address) {
  Targets targets;
  if (IsListOfIps(address)) {
    targets.names = {address};
    targets.kind = absl::StrContains(address, ',') ? TargetKind::kReplicas : TargetKind::kOneServer;
    return targets;
  }
  for (absl::string_view part : absl::StrSplit(address, ',')) {
    // Every address has a colon: what has none is meant as a part of the path before it.
    if (!targets.names.empty() && IsUnixSocket(targets.names.back()) &&
        !absl::StrContains(part, ':')) {
      absl::StrAppend(&targets.names.back(), ",", part);
    } else {
      targets.names.emplace_back(part);
    }
  }
  if (targets.names.size() > 1 || absl::StartsWith(address, "dns:"))
    targets.kind = TargetKind::kReplicas;
  return targets;
}

std::vector<std::string> Replicas(const std::string& address) {
  return SplitTargets(address).names;
}

absl::Status CheckAddress(const std::string& address) {
  for (const std::string& name : SplitTargets(address).names) {
    if (std::string mistake = FindMistake(name); !mistake.empty())
      return absl::InvalidArgumentError(absl::StrCat("address '", name, "': ", mistake));
  }
  return absl::OkStatus();
}

}  // namespace norm::client
