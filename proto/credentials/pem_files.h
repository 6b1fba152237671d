// Certificates and keys as either end of a TLS connection is given them, checked before gRPC gets
// them: what it says of a bad file is a page of log, or nothing until a handshake fails.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/credentials/secret_file.h"

namespace norm::credentials {

/// A certificate, those that lead to its root, and the private key, as PEM.
struct KeyPair {
  std::string certificate_chain;
  std::string private_key;
  std::string subject;  // of the certificate, as in "CN=normd"
  absl::Time not_after;
};

/// Errors: those of ReadFile, and INVALID_ARGUMENT naming the setting and the file when it holds no
/// PEM certificate or key, the key needs a passphrase or is not that of the certificate, or the
/// certificate is not valid at `now`.
absl::StatusOr<KeyPair> ReadKeyPair(const NamedFile& certificate, const NamedFile& key,
                                    absl::Time now);

/// PEM certificates to trust. Errors: those of ReadFile, and INVALID_ARGUMENT when there is none, one
/// cannot be read, or all of them have expired.
absl::StatusOr<std::string> ReadAuthorities(const NamedFile& file, absl::Time now);

}  // namespace norm::credentials
