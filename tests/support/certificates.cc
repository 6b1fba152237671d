#include "tests/support/certificates.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"

namespace norm::test {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free_all)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio MakeBio() { return {BIO_new(BIO_s_mem()), BIO_free_all}; }

std::string Contents(const Bio& bio) {
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(size)};
}

std::string ToPem(X509* certificate) {
  const Bio bio = MakeBio();
  EXPECT_EQ(PEM_write_bio_X509(bio.get(), certificate), 1);
  return Contents(bio);
}

std::string ToPem(EVP_PKEY* key) {
  const Bio bio = MakeBio();
  EXPECT_EQ(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr), 1);
  return Contents(bio);
}

Key MakeKey() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

void Extend(X509* certificate, int kind, const std::string& value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
  ASSERT_NE(extension, nullptr) << value;
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

/// Not signed yet.
Certificate Make(const Subject& subject, EVP_PKEY* key) {
  static std::atomic<long> serial{1};
  Certificate certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial.fetch_add(1));
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(subject.not_before));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(subject.not_after));
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(subject.common_name.c_str()),
                             -1, -1, 0);
  return certificate;
}

int Connect(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0) << address;
  return fd;
}

int ToOpenSsl(TlsVersion version) {
  switch (version) {
    case TlsVersion::k1_1:
      return TLS1_1_VERSION;
    case TlsVersion::k1_2:
      return TLS1_2_VERSION;
    case TlsVersion::k1_3:
      break;
  }
  return TLS1_3_VERSION;
}

}  // namespace

struct TestAuthority::Signer {
  Key key{nullptr, EVP_PKEY_free};
  Certificate certificate{nullptr, X509_free};
};

TestAuthority::TestAuthority(const Subject& subject) : signer_(std::make_unique<Signer>()) {
  signer_->key = MakeKey();
  signer_->certificate = Make(subject, signer_->key.get());
  X509* const own = signer_->certificate.get();
  X509_set_issuer_name(own, X509_get_subject_name(own));
  Extend(own, NID_basic_constraints, "critical,CA:TRUE");
  EXPECT_GT(X509_sign(own, signer_->key.get(), EVP_sha256()), 0);
  certificate_ = ToPem(own);
}
TestAuthority::~TestAuthority() = default;

Credential TestAuthority::Issue(const Subject& subject) const {
  const Key key = MakeKey();
  const Certificate certificate = Make(subject, key.get());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(signer_->certificate.get()));
  if (!subject.names.empty()) {
    Extend(certificate.get(), NID_subject_alt_name, absl::StrJoin(subject.names, ","));
  }
  EXPECT_GT(X509_sign(certificate.get(), signer_->key.get(), EVP_sha256()), 0);
  return {ToPem(certificate.get()), ToPem(key.get())};
}

Credential TestAuthority::IssueServer(const std::string& common_name) const {
  return Issue({.common_name = common_name, .names = {"DNS:localhost", "IP:127.0.0.1"}});
}

std::string EncryptKey(const std::string& key, const std::string& passphrase) {
  const Bio in(BIO_new_mem_buf(key.data(), static_cast<int>(key.size())), BIO_free_all);
  const Key parsed(PEM_read_bio_PrivateKey(in.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  const Bio out = MakeBio();
  EXPECT_EQ(PEM_write_bio_PrivateKey(out.get(), parsed.get(), EVP_aes_256_cbc(),
                                     reinterpret_cast<const unsigned char*>(passphrase.data()),
                                     static_cast<int>(passphrase.size()), nullptr, nullptr),
            1);
  return Contents(out);
}

TlsProbe ProbeTls(const std::string& address, TlsVersion version) {
  const int fd = Connect(address);
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  SSL_CTX_set_security_level(context.get(), 0);  // Debian's forbids TLS 1.1 by itself
  SSL_CTX_set_min_proto_version(context.get(), ToOpenSsl(version));
  SSL_CTX_set_max_proto_version(context.get(), ToOpenSsl(version));
  const unsigned char http2[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), http2, sizeof(http2));
  TlsProbe probe;
  {
    const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
    SSL_set_fd(ssl.get(), fd);
    probe.connected = SSL_connect(ssl.get()) == 1;
    const Certificate certificate(SSL_get1_peer_certificate(ssl.get()), X509_free);
    char name[256] = {};
    if (certificate != nullptr &&
        X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name,
                                  sizeof(name)) > 0) {
      probe.common_name = name;
    }
  }
  close(fd);
  return probe;
}

}  // namespace norm::test
