// What a call says of itself in its metadata, and what the server calls it.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/client_context.h"
#include "norm/client/options.h"

namespace norm::client {

using CallMetadata = std::map<std::string, std::string>;

/// The members of an identity that can be used; gRPC 1.51 ends the process over metadata that it does
/// not take.
CallMetadata ToMetadata(const CallIdentity& identity);

/// Adds all of it to a call that has not begun.
void AddTo(grpc::ClientContext& context, const CallMetadata& metadata);

/// The request id among what the server sent, or else what the client had sent; empty without either.
/// `server`: leading or trailing metadata that have come.
std::string RequestIdOf(const std::multimap<grpc::string_ref, grpc::string_ref>& server,
                        const CallMetadata& sent);

/// A status that RequestId() finds it in, unless it is OK or the id empty.
absl::Status WithRequestId(absl::Status status, const std::string& request_id);

}  // namespace norm::client
