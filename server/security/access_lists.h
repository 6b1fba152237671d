// Who may call what.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace norm::server {

/// Parts of the server that are given away separately.
enum class Area : uint8_t {
  kData,   // NormalizationService
  kAdmin,  // every other service: ServerService, EchoService, reflection, whatever is added
  kOpen,   // grpc.health.v1: probes and load balancers have no identity
};
inline constexpr int kListedAreas = 2;  // of the above, those that lists restrict

/// `path` as HTTP/2 has it: "/norm.v1.NormalizationService/Normalize".
Area AreaOf(absl::string_view path);

/// What a call shows of who makes it. Borrowed for the time of a check.
struct Caller {
  absl::optional<absl::string_view> authorization;  // the metadata of that name
  bool has_certificate = false;                     // one that the TLS handshake has verified
  std::vector<absl::string_view>
      certificate_names;  // its common name and subject alternative names
};

/// Tokens and certificate names that are let into one area.
struct AccessList {
  std::vector<std::string> tokens;
  absl::flat_hash_set<std::string> clients;
  bool given = false;  // by a file; without one the area is not restricted by itself
};

/// The lists of both areas, as they were read at one time.
///
/// An area without a list is open to whoever can connect, but for one case: admin is closed while
/// only data has a list, so that restricting tensors never leaves the rest open.
///
/// Threads:  safe.
class AccessLists {
 public:
  AccessLists(AccessList data, AccessList admin);

  /// Compares tokens in constant time, with all of both lists. Errors: UNAUTHENTICATED for a caller
  /// that is nobody known (no credentials, an unknown token), PERMISSION_DENIED for one that is known
  /// and not let in. Messages do not repeat tokens.
  absl::Status Check(Area area, const Caller& caller) const;

  /// "2 tokens, 1 client", "open" or "closed": what is told about an area in logs.
  std::string Describe(Area area) const;

 private:
  const AccessList& of(Area area) const { return lists_[static_cast<size_t>(area)]; }
  bool open(Area area) const;

  std::array<AccessList, kListedAreas> lists_;
};

}  // namespace norm::server
