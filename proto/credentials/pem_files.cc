#include "proto/credentials/pem_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace norm::credentials {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free_all)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio Over(const std::string& bytes) {
  return {BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())), BIO_free_all};
}

/// Instead of OpenSSL's own, which asks the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

/// Those that stand before the first that cannot be read; `whole` says whether there is none such.
std::vector<Certificate> ReadCertificates(const std::string& pem, bool* whole) {
  const Bio bio = Over(pem);
  std::vector<Certificate> certificates;
  for (;;) {
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr), X509_free);
    if (next == nullptr) break;
    certificates.push_back(std::move(next));
  }
  *whole = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  return certificates;
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts{};
  if (time == nullptr || ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string Format(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

std::string SubjectOf(const X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free_all);
  X509_NAME_print_ex(bio.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(size)};
}

}  // namespace

absl::StatusOr<KeyPair> ReadKeyPair(const NamedFile& certificate, const NamedFile& key,
                                    absl::Time now) {
  absl::StatusOr<std::string> chain = ReadFile(certificate);
  if (!chain.ok()) return chain.status();
  absl::StatusOr<std::string> secret = ReadFile(key);
  if (!secret.ok()) return secret.status();

  bool whole = false;
  const std::vector<Certificate> certificates = ReadCertificates(*chain, &whole);
  if (certificates.empty()) return Violation(certificate, "holds no PEM certificate");
  if (!whole) {
    return Violation(certificate, absl::StrCat("holds a certificate that cannot be read, behind ",
                                               certificates.size(), " that can"));
  }
  X509* const own = certificates.front().get();
  const absl::Time not_before = ToTime(X509_get0_notBefore(own));
  const absl::Time not_after = ToTime(X509_get0_notAfter(own));
  if (now > not_after) {
    return Violation(certificate,
                     absl::StrCat("expired at ", Format(not_after), ", it is ", Format(now)));
  }
  if (now < not_before) {
    return Violation(certificate, absl::StrCat("is not valid before ", Format(not_before),
                                               ", it is ", Format(now)));
  }

  const Bio bio = Over(*secret);
  const Key parsed(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr),
                   EVP_PKEY_free);
  const bool matches = parsed != nullptr && X509_check_private_key(own, parsed.get()) == 1;
  ERR_clear_error();
  if (parsed == nullptr) {
    return Violation(key, "holds no PEM private key, or one that needs a passphrase");
  }
  if (!matches) {
    return Violation(key,
                     absl::StrCat("is not the key of the certificate in '", certificate.path, "'"));
  }
  return KeyPair{.certificate_chain = *std::move(chain),
                 .private_key = *std::move(secret),
                 .subject = SubjectOf(own),
                 .not_after = not_after};
}

absl::StatusOr<std::string> ReadAuthorities(const NamedFile& file, absl::Time now) {
  absl::StatusOr<std::string> pem = ReadFile(file);
  if (!pem.ok()) return pem.status();
  bool whole = false;
  const std::vector<Certificate> certificates = ReadCertificates(*pem, &whole);
  if (certificates.empty()) return Violation(file, "holds no PEM certificate");
  if (!whole) {
    return Violation(file, absl::StrCat("holds a certificate that cannot be read, behind ",
                                        certificates.size(), " that can"));
  }
  absl::Time last = absl::InfinitePast();
  for (const Certificate& one : certificates) {
    last = std::max(last, ToTime(X509_get0_notAfter(one.get())));
  }
  if (now > last) {
    return Violation(file,
                     absl::StrCat("has no certificate that is still valid, the last expired at ",
                                  Format(last), ", it is ", Format(now)));
  }
  return pem;
}

}  // namespace norm::credentials
