// Files of secrets and certificates, as client and server read them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/credentials/bearer_token.h"
#include "proto/credentials/pem_files.h"
#include "proto/credentials/secret_file.h"
#include "tests/support/certificates.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::credentials {
namespace {

using test::Credential;
using test::TestAuthority;
using testing::ElementsAre;
using testing::HasSubstr;

class CredentialsTest : public testing::Test {
 protected:
  NamedFile Put(const std::string& name, const std::string& text) {
    return {"--flag", folder_.Write(name, text)};
  }
  const client::ScratchFolder folder_;
};

TEST_F(CredentialsTest, FilesAreReadWholeUpToAMebibyte) {
  const std::string most(1 << 20, 'x');
  EXPECT_EQ(ReadFile(Put("most", most)).value(), most);
  EXPECT_EQ(ReadFile(Put("empty", "")).value(), "");
  EXPECT_EQ(ReadFile(Put("zero", std::string("a\0b", 3))).value(), std::string("a\0b", 3));
  const absl::Status more = ReadFile(Put("more", most + "x")).status();
  EXPECT_EQ(more.message(),
            absl::StrCat("--flag: '", folder_ / "more", "' has more than 1048576 bytes"));
  EXPECT_THAT(std::string(ReadFile({"--flag", folder_ / ""}).status().message()),
              HasSubstr("is not a regular file"));
}

TEST_F(CredentialsTest, StampsTellEveryWayOfReplacingAFile) {
  const std::string path = Put("file", "one").path;
  const FileStamp first = StampOf(path);
  EXPECT_EQ(StampOf(path), first);
  EXPECT_EQ(ReadFile({"--flag", path}).value(), "one");  // reading is no change
  EXPECT_EQ(StampOf(path), first);
  std::filesystem::rename(Put("other", "two").path, path);
  const FileStamp renamed = StampOf(path);
  EXPECT_NE(renamed, first);
  std::filesystem::create_symlink(path, folder_ / "link");
  EXPECT_EQ(StampOf(folder_ / "link"), renamed);
  Put("file", "longer");
  EXPECT_NE(StampOf(path), renamed);
  std::filesystem::remove(path);
  EXPECT_EQ(StampOf(path), FileStamp());
  EXPECT_EQ(StampOf(folder_ / "link"), FileStamp());
}

TEST_F(CredentialsTest, ExposureIsWhatOthersMayDo) {
  const std::string path = Put("secret", "x").path;
  const auto exposure = [&path](mode_t mode) {
    chmod(path.c_str(), mode);
    return Exposure(path);
  };
  EXPECT_EQ(exposure(0600), "");
  EXPECT_EQ(exposure(0440), "");
  EXPECT_EQ(exposure(0644), "readable by every user (mode 0644)");
  EXPECT_EQ(exposure(0602), "writable by every user (mode 0602)");
  EXPECT_EQ(exposure(0660), "writable by its group (mode 0660)");
  EXPECT_EQ(Exposure(folder_ / "none"), "");
}

TEST_F(CredentialsTest, TokensStandOneALineBetweenCommentsAndSpaces) {
  const auto tokens = ReadTokens(
      Put("t", "# two\n\n  0123456789abcdef \r\n\tABCDEFGHIJ-._~+/==\n#0123456789abcdef"));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(*tokens, ElementsAre("0123456789abcdef", "ABCDEFGHIJ-._~+/=="));
  EXPECT_EQ(ReadToken(Put("t", "0123456789abcdef\n")).value(), "0123456789abcdef");
  for (const char* wrong : {"0123456789abcde", "0123456789=abcdef",
                            "0123456789abcd\xc3\xa9"
                            "f",
                            "0123456789 abcdef", "0123456789\"abcdef"}) {
    const absl::Status status = ReadTokens(Put("t", absl::StrCat("\n", wrong, "\n"))).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("t' line 2: the token has ")) << wrong;
  }
}

TEST_F(CredentialsTest, AChainMayHoldItsKeyAndMoreCertificates) {
  const TestAuthority authority({.common_name = "authority"});
  const Credential own = authority.IssueServer("a name");
  const NamedFile all = Put(
      "all.pem", absl::StrCat("text before\n", own.certificate, authority.certificate(), own.key));
  const auto pair = ReadKeyPair(all, all, absl::Now());
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_EQ(pair->subject, "CN=a name");
  EXPECT_GT(pair->not_after, absl::Now());
  EXPECT_LT(pair->not_after, absl::Now() + absl::Hours(1) + absl::Seconds(1));
  // The first certificate is the one that must be of the key.
  const NamedFile turned = Put("turned.pem", authority.certificate() + own.certificate);
  EXPECT_THAT(std::string(ReadKeyPair(turned, all, absl::Now()).status().message()),
              HasSubstr("all.pem' is not the key of the certificate in '" + turned.path));
  EXPECT_THAT(std::string(ReadKeyPair(all, all, absl::Now() + absl::Hours(2)).status().message()),
              HasSubstr("all.pem' expired at "));
  EXPECT_THAT(std::string(ReadKeyPair(all, all, absl::Now() - absl::Hours(2)).status().message()),
              HasSubstr("all.pem' is not valid before "));
}

TEST_F(CredentialsTest, AuthoritiesNeedOneThatIsValid) {
  const TestAuthority valid({.common_name = "valid"});
  const TestAuthority late({.common_name = "late",
                            .not_before = absl::Now() - absl::Hours(2),
                            .not_after = absl::Now() - absl::Hours(1)});
  const std::string both = late.certificate() + valid.certificate();
  EXPECT_EQ(ReadAuthorities(Put("ca", both), absl::Now()).value(), both);
  EXPECT_THAT(
      std::string(ReadAuthorities(Put("ca", late.certificate()), absl::Now()).status().message()),
      HasSubstr("has no certificate that is still valid, the last expired at "));
  EXPECT_THAT(std::string(ReadAuthorities(
                              Put("ca", valid.certificate() + "-----BEGIN CERTIFICATE-----\nxx\n"),
                              absl::Now())
                              .status()
                              .message()),
              HasSubstr("holds a certificate that cannot be read, behind 1 that can"));
}

}  // namespace
}  // namespace norm::credentials
