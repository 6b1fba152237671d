// How the server's port meets connections and calls: TLS or not, and who is let in.
#pragma once

#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "server/transport/middleware/access.h"

namespace norm::server {

/// Credentials for ServerBuilder::AddListeningPort. TLS (1.2 or later) where the files of
/// access.security() ask for it, plaintext else; a connection that begins is met with the files of
/// that moment. `access` is asked about every call of every service if anything is restricted, and
/// not at all otherwise.
///
/// Ownership:  borrows `access`; both must outlive the server, which does not hold its credentials.
std::shared_ptr<grpc::ServerCredentials> ListeningCredentials(AccessControl& access);

}  // namespace norm::server
