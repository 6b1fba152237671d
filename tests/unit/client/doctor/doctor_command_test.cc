// `normctl doctor` as a process.
#include <gmock/gmock.h>

#include "nlohmann/json.hpp"
#include "tests/unit/client/normctl_fixture.h"

namespace norm::client {
namespace {

using ::testing::HasSubstr;

class DoctorCommandTest : public NormctlTest {
 protected:
  /// What it says of `check`; null where it says nothing.
  static nlohmann::json Said(const Finished& run, const std::string& check) {
    const nlohmann::json report =
        nlohmann::json::parse(run.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(report.is_discarded()) << run.out << run.error;
    for (const nlohmann::json& finding : report["findings"]) {
      if (finding["check"] == check) return finding;
    }
    return nullptr;
  }
};

TEST_F(DoctorCommandTest, WithoutAServerItLooksAtTheMachineAlone) {
  const Finished run = Normctl("doctor --device cpu --json");
  EXPECT_EQ(run.exit_code, 0) << run.out << run.error;
  EXPECT_EQ(Said(run, "build")["severity"].is_string(), true);
  EXPECT_TRUE(Said(run, "driver library").is_null());
  EXPECT_TRUE(Said(run, "open files")["severity"].is_string());
  EXPECT_THAT(Normctl("doctor --device cpu").out, HasSubstr("0 errors"));
}

TEST_F(DoctorCommandTest, AServerThatAnswersWrongIsAnError) {
  const std::string name = server_.address() + " result";
  const Finished run =
      Normctl("doctor --device cpu --json --server " + server_.address());  // answers y = x
  EXPECT_EQ(run.exit_code, 1) << run.out;
  EXPECT_EQ(Said(run, name)["severity"], "error");
  EXPECT_EQ(Said(run, server_.address() + " port")["seen"], "open");
}

TEST_F(DoctorCommandTest, EachReplicaIsAsked) {
  const std::string gone = "127.0.0.1:1";
  const Finished run =
      Normctl("doctor --device cpu --json --server " + server_.address() + "," + gone);
  EXPECT_EQ(run.exit_code, 3) << run.out;
  EXPECT_EQ(Said(run, server_.address() + " health")["seen"], "SERVING");
  EXPECT_EQ(Said(run, gone + " port")["seen"], "Connection refused");
  EXPECT_EQ(Said(run, gone + " health")["severity"], "error");
}

TEST_F(DoctorCommandTest, AFileThatCannotBeUsedIsAFindingBesideTheOthers) {
  const std::string ask = "doctor --device cpu --json --server " + server_.address();
  const std::string name = server_.address() + " ";
  folder_.Write("short", "token\n");
  const Finished token = Normctl(ask + " --token-file " + (folder_ / "short"));
  EXPECT_EQ(token.exit_code, 1) << token.error;
  EXPECT_THAT(std::string(Said(token, name + "credentials")["seen"]),
              HasSubstr("short' line 1: the token has 5 characters, fewer than 16"));
  EXPECT_EQ(Said(token, name + "health")["seen"], "SERVING");  // asked without it
  EXPECT_EQ(Said(token, name + "result")["severity"], "error");
  EXPECT_TRUE(Said(token, "open files")["severity"].is_string());

  const Finished tls = Normctl(ask + " --tls-ca " + (folder_ / "none"));
  EXPECT_EQ(tls.exit_code, 1) << tls.error;
  EXPECT_THAT(std::string(Said(tls, name + "credentials")["seen"]),
              HasSubstr("none' cannot be read: No such file or directory"));
  EXPECT_EQ(Said(tls, name + "port")["seen"], "open");
  EXPECT_TRUE(Said(tls, name + "health").is_null());

  const Finished gone =
      Normctl("doctor --device cpu --json --server 127.0.0.1:1 --tls-ca " + (folder_ / "none"));
  EXPECT_EQ(gone.exit_code, 3) << gone.error;
  EXPECT_EQ(Said(gone, "127.0.0.1:1 credentials")["severity"], "error");
  EXPECT_EQ(Said(gone, "127.0.0.1:1 port")["seen"], "Connection refused");
}

TEST_F(DoctorCommandTest, RefusesADeviceThatIsNone) {
  EXPECT_EQ(Normctl("doctor --device tpu").exit_code, 2);
}

}  // namespace
}  // namespace norm::client
