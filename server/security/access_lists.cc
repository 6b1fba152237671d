#include "server/security/access_lists.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/credentials/bearer_token.h"

namespace norm::server {
namespace {

const char* NameOf(Area area) { return area == Area::kData ? "data" : "admin"; }

/// Takes as long whether the token is the first, the last or none of them.
bool Holds(const std::vector<std::string>& tokens, absl::string_view token) {
  bool found = false;
  for (const std::string& one : tokens) {
    if (one.size() != token.size()) continue;
    found |= CRYPTO_memcmp(one.data(), token.data(), token.size()) == 0;
  }
  return found;
}

}  // namespace

Area AreaOf(absl::string_view path) {
  if (absl::StartsWith(path, "/norm.v1.NormalizationService/")) return Area::kData;
  if (absl::StartsWith(path, "/grpc.health.v1.Health/")) return Area::kOpen;
  return Area::kAdmin;
}

AccessLists::AccessLists(AccessList data, AccessList admin)
    : lists_{std::move(data), std::move(admin)} {}

bool AccessLists::open(Area area) const {
  return !of(area).given && (area == Area::kData || !of(Area::kData).given);
}

absl::Status AccessLists::Check(Area area, const Caller& caller) const {
  if (area == Area::kOpen || open(area)) return absl::OkStatus();
  const AccessList& list = of(area);
  if (std::any_of(caller.certificate_names.begin(), caller.certificate_names.end(),
                  [&list](absl::string_view name) { return list.clients.contains(name); })) {
    return absl::OkStatus();
  }
  if (caller.authorization.has_value()) {
    absl::string_view token = *caller.authorization;
    const absl::string_view scheme = credentials::kBearer;
    if (!absl::StartsWithIgnoreCase(token, scheme)) {
      return absl::UnauthenticatedError("authorization: must be 'Bearer TOKEN'");
    }
    token.remove_prefix(scheme.size());
    const bool data = Holds(of(Area::kData).tokens, token);
    const bool admin = Holds(of(Area::kAdmin).tokens, token);
    if (area == Area::kData ? data : admin) return absl::OkStatus();
    if (!data && !admin) return absl::UnauthenticatedError("authorization: the token is not known");
    return absl::PermissionDeniedError(absl::StrCat(
        "authorization: the token does not give access to ", NameOf(area), " services"));
  }
  if (caller.has_certificate) {
    return absl::PermissionDeniedError(
        absl::StrCat("client certificate '",
                     caller.certificate_names.empty() ? "" : caller.certificate_names.front(),
                     "' does not give access to ", NameOf(area), " services"));
  }
  return absl::UnauthenticatedError(
      absl::StrCat("authorization: a bearer token is needed for ", NameOf(area), " services"));
}

std::string AccessLists::Describe(Area area) const {
  if (area == Area::kOpen || open(area)) return "open";
  const AccessList& list = of(area);
  if (!list.given) return "closed";
  return absl::StrCat(list.tokens.size(), " tokens, ", list.clients.size(), " clients");
}

}  // namespace norm::server
