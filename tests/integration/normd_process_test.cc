// The normd binary itself: starting, port file, refusing bad settings, draining on SIGTERM.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "tests/integration/await.h"
#include "tests/integration/health_check.h"
#include "tests/integration/normd_process.h"
#include "tests/support/http_get.h"

namespace norm::server {
namespace {

using norm::test::Await;
using norm::test::Canary;
using norm::test::CanaryRequest;
using norm::test::CheckHealth;
using norm::test::HttpGet;
using norm::test::NormdProcess;
using norm::v1::NormalizationService;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(NormdProcessTest, ServesAndEndsWithZeroOnSigterm) {
  NormdProcess normd({});
  ASSERT_TRUE(normd.AwaitReady());
  EXPECT_THAT(normd.Address("metrics"), HasSubstr("127.0.0.1:"));
  auto stub = normd.Connect();
  EXPECT_TRUE(Canary(*stub).ok());
  // The port file comes first.
  EXPECT_TRUE(Await([&] {
    return absl::StrContains(normd.output(), "normd ready grpc=" + normd.Address("grpc") +
                                                 " metrics=" + normd.Address("metrics"));
  })) << normd.output();
  normd.Signal(SIGTERM);
  EXPECT_EQ(normd.Wait(), 0);
  EXPECT_EQ(Canary(*stub).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(NormdProcessTest, ServesThroughTheDrainDelayAndEndsIdleStreams) {
  NormdProcess normd({"--drain_delay=2s", "--drain_timeout=60s"});
  ASSERT_TRUE(normd.AwaitReady());
  auto stub = normd.Connect();
  grpc::ClientContext context;
  auto stream = stub->NormalizeStream(&context);
  norm::v1::StreamRequest request;
  *request.mutable_forward() = CanaryRequest();
  norm::v1::StreamResponse response;
  ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
  normd.Signal(SIGTERM);
  ASSERT_TRUE(Await([&] { return absl::StrContains(normd.output(), "draining"); }));
  EXPECT_TRUE(Canary(*stub).ok());
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(normd.Wait(), 0);
}

TEST(NormdProcessTest, IsAliveButNotReadyWhileItDrains) {
  NormdProcess normd({"--drain_delay=1h"});
  ASSERT_TRUE(normd.AwaitReady());
  const std::shared_ptr<grpc::Channel> channel = normd.OpenChannel();
  EXPECT_EQ(CheckHealth(channel, ""), "SERVING");
  EXPECT_THAT(HttpGet(normd.Address("metrics"), "/readyz"),
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nserving\n")));
  normd.Signal(SIGTERM);
  ASSERT_TRUE(Await([&] { return CheckHealth(channel, "") == "NOT_SERVING"; }));
  EXPECT_EQ(CheckHealth(channel, "norm.v1.NormalizationService"), "NOT_SERVING");
  EXPECT_EQ(CheckHealth(channel, "liveness"), "SERVING");
  EXPECT_THAT(HttpGet(normd.Address("metrics"), "/readyz"),
              AllOf(StartsWith("HTTP/1.1 503 "), EndsWith("\r\n\r\ndraining\n")));
  EXPECT_THAT(HttpGet(normd.Address("metrics"), "/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST(NormdProcessTest, SecondSignalEndsItAtOnce) {
  NormdProcess normd({"--drain_delay=1h"});
  ASSERT_TRUE(normd.AwaitReady());
  normd.Signal(SIGTERM);
  ASSERT_TRUE(Await([&] { return absl::StrContains(normd.output(), "draining"); }));
  normd.Signal(SIGTERM);
  EXPECT_EQ(normd.Wait(), 128 + SIGTERM);
}

TEST(NormdProcessTest, BadSettingsAreOneLineAndExitTwo) {
  for (const char* flag : {"--slots=0", "--listen=nowhere", "--no_such_flag", "--flagfile=/none"}) {
    NormdProcess normd({flag});
    EXPECT_EQ(normd.Wait(), 2) << flag;
    const std::string output = normd.output();
    EXPECT_THAT(output, testing::StartsWith("normd: "));
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
  }
}

#ifdef FAKE_CUDA_LIBRARY
/// In place of this machine's driver: tests/unit/client/doctor/fake_cuda.cc as `driver` says.
class FakeDriver {
 public:
  explicit FakeDriver(const std::string& driver, const char* visible = nullptr) {
    std::string folder = testing::TempDir() + "/driver_XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    EXPECT_EQ(symlink(FAKE_CUDA_LIBRARY, (folder + "/libcuda.so.1").c_str()), 0);
    if (const char* const before = std::getenv("LD_LIBRARY_PATH")) path_ = before;
    setenv("LD_LIBRARY_PATH", (path_.empty() ? folder : folder + ":" + path_).c_str(), 1);
    setenv("FAKE_CUDA", driver.c_str(), 1);
    if (visible != nullptr) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
  }
  ~FakeDriver() {
    path_.empty() ? unsetenv("LD_LIBRARY_PATH") : setenv("LD_LIBRARY_PATH", path_.c_str(), 1);
    unsetenv("FAKE_CUDA");
    unsetenv("CUDA_VISIBLE_DEVICES");
  }

 private:
  std::string path_;
};

TEST(NormdProcessTest, DriversThatAreOldOrShowNoGpuAreOneLineAndExitOne) {
  for (const auto& [driver, visible, said] :
       {std::tuple<const char*, const char*, const char*>{
            "driver=11040", nullptr, "CUDA driver version is insufficient for CUDA runtime"},
        {"init=803", nullptr, "unsupported display driver / cuda driver combination"},
        {"init=100", "", "the CUDA runtime sees no device (CUDA_VISIBLE_DEVICES='')"}}) {
    const FakeDriver fake(driver, visible);
    NormdProcess normd({"--device=cuda", "--log_level=error"});
    EXPECT_EQ(normd.Wait(), 1) << said;
    const std::string output = normd.output();
    EXPECT_THAT(output, testing::StartsWith("normd: --device=cuda: no usable CUDA device: "));
    EXPECT_THAT(output, HasSubstr(said));
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
  }
}

TEST(NormdProcessTest, WithoutAUsableGpuAutoServesWithTheCpuAndSaysWhy) {
  for (const auto& [driver, said] : {std::pair{"driver=11040", "driver version is insufficient"},
                                     {"init=100", "sees no device (CUDA_VISIBLE_DEVICES='7')"}}) {
    const FakeDriver fake(driver, "7");
    NormdProcess normd({"--device=auto"});
    ASSERT_TRUE(normd.AwaitReady());
    EXPECT_TRUE(Await([&, said = said] {
      return absl::StrContains(normd.output(), said) &&
             absl::StrContains(normd.output(), "no usable GPU: the CPU backend serves");
    })) << normd.output();
    auto stub = normd.Connect();
    EXPECT_TRUE(Canary(*stub).ok());
  }
}
#endif

TEST(NormdProcessTest, PortFileReplacesFilesOnly) {
  const std::string fifo = testing::TempDir() + "/normd_port_fifo";
  unlink(fifo.c_str());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  NormdProcess normd({"--port_file=" + fifo});
  EXPECT_EQ(normd.Wait(), 1);
  EXPECT_THAT(normd.output(), HasSubstr("--port_file: " + fifo + " exists and is not a regular"));
  struct stat now {};
  ASSERT_EQ(stat(fifo.c_str(), &now), 0);
  EXPECT_TRUE(S_ISFIFO(now.st_mode));
  unlink(fifo.c_str());
}

TEST(NormdProcessTest, BusyPortsAreNamedAndExitOne) {
  NormdProcess first({});
  ASSERT_TRUE(first.AwaitReady());
  for (const auto& [flag, which] :
       {std::pair{"--listen=", "grpc"}, {"--metrics_listen=", "metrics"}}) {
    NormdProcess second({"--log_level=error", flag + first.Address(which)});
    EXPECT_EQ(second.Wait(), 1);
    const std::string output = second.output();
    EXPECT_THAT(output, HasSubstr(first.Address(which)));
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
  }
  auto stub = first.Connect();
  EXPECT_TRUE(Canary(*stub).ok());
}

/// Process ids of the members, in the order in which they were started.
std::vector<pid_t> Members(const std::string& output) {
  std::vector<pid_t> pids;
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    const size_t at = line.find("pid=");
    if (!absl::StrContains(line, " process ") || at == absl::string_view::npos) continue;
    pids.push_back(std::atoi(std::string(line.substr(at + 4)).c_str()));
  }
  return pids;
}

/// Calls on connections of their own until one succeeds.
bool AwaitServed(const NormdProcess& normd) {
  return Await([&] { return Canary(*normd.Connect()).ok(); });
}

TEST(NormdProcessTest, AGroupSharesThePortAndOutlivesAMember) {
  NormdProcess normd({"--processes=2"});
  ASSERT_TRUE(normd.AwaitReady());
  const std::vector<pid_t> first = Members(normd.output());
  ASSERT_EQ(first.size(), 2U);
  // Connections are spread over the members by a hash: of many, each has some.
  std::vector<std::unique_ptr<NormalizationService::Stub>> stubs;
  for (int i = 0; i < 40; ++i) {
    stubs.push_back(normd.Connect());
    EXPECT_TRUE(Canary(*stubs.back()).ok());
  }
  kill(first[0], SIGKILL);
  EXPECT_TRUE(Await([&] { return absl::StrContains(normd.output(), "code=137"); }));
  // Who was connected to the other goes on; new connections find it.
  int unharmed = 0;
  for (const auto& stub : stubs) unharmed += Canary(*stub).ok() ? 1 : 0;
  EXPECT_GT(unharmed, 0);
  EXPECT_TRUE(AwaitServed(normd));
  ASSERT_TRUE(Await([&] { return Members(normd.output()).size() == 3; }));
  // Nobody is left over when the group has ended.
  normd.Signal(SIGTERM);
  EXPECT_EQ(normd.Wait(), 0);
  for (const pid_t member : Members(normd.output())) EXPECT_EQ(kill(member, 0), -1) << member;
}

TEST(NormdProcessTest, AGroupEndsWithTheCodeOfAMemberThatCannotStart) {
  NormdProcess other({});
  ASSERT_TRUE(other.AwaitReady());
  // The second member's metrics port is taken.
  const std::string metrics = other.Address("metrics");
  const int port = std::atoi(metrics.substr(metrics.rfind(':') + 1).c_str());
  NormdProcess group({"--processes=2", "--metrics_listen=127.0.0.1:" + std::to_string(port - 1)});
  EXPECT_EQ(group.Wait(), 1);
  EXPECT_THAT(group.output(), HasSubstr(metrics));
  NormdProcess busy({"--processes=2", "--listen=" + other.Address("grpc")});
  EXPECT_EQ(busy.Wait(), 1);
  EXPECT_THAT(busy.output(), HasSubstr("cannot listen on " + other.Address("grpc")));
  EXPECT_TRUE(Canary(*other.Connect()).ok());
}

TEST(NormdProcessTest, MembersEndWithTheirGroup) {
  // Orphans become this process's children, so that their ends can be awaited.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  NormdProcess normd({"--processes=2"});
  ASSERT_TRUE(normd.AwaitReady());
  const std::vector<pid_t> members = Members(normd.output());
  ASSERT_EQ(members.size(), 2U);
  normd.Signal(SIGKILL);
  EXPECT_EQ(normd.Wait(), 1000 + SIGKILL);
  for (const pid_t member : members) {
    int status = 0;
    EXPECT_TRUE(Await([&] { return waitpid(member, &status, WNOHANG) == member; })) << member;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

TEST(NormdProcessTest, HelpAndVersionExitZero) {
  NormdProcess help({"--help"});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_THAT(help.output(), HasSubstr("--max_message_bytes"));
  NormdProcess version({"--version"});
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_THAT(version.output(), testing::StartsWith("normd "));
}

}  // namespace
}  // namespace norm::server
