// Certificates and keys that tests make for themselves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace norm::test {

/// PEM.
struct Credential {
  std::string certificate;
  std::string key;
};

struct Subject {
  std::string common_name;
  std::vector<std::string> names = {};  // as OpenSSL writes them: "DNS:localhost", "IP:127.0.0.1"
  absl::Time not_before = absl::Now() - absl::Hours(1);
  absl::Time not_after = absl::Now() + absl::Hours(1);
};

/// An authority with a key of its own (P-256), valid for an hour.
class TestAuthority {
 public:
  explicit TestAuthority(const Subject& subject);
  ~TestAuthority();

  /// PEM.
  const std::string& certificate() const { return certificate_; }
  /// With a new key; every certificate has another serial number.
  Credential Issue(const Subject& subject) const;
  /// What servers of these tests show: for localhost and 127.0.0.1.
  Credential IssueServer(const std::string& common_name = "server") const;

 private:
  struct Signer;
  std::unique_ptr<Signer> signer_;
  std::string certificate_;
};

/// The same key, encrypted.
std::string EncryptKey(const std::string& key, const std::string& passphrase);

/// What a TLS client sees at `address` (127.0.0.1:port), without checking it.
struct TlsProbe {
  bool connected = false;  // the handshake was completed
  std::string common_name;
};
enum class TlsVersion { k1_1, k1_2, k1_3 };
TlsProbe ProbeTls(const std::string& address, TlsVersion version = TlsVersion::k1_3);

}  // namespace norm::test
