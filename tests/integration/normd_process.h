// The normd binary as a process, for tests that look at it from outside.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "tests/integration/await.h"
#include "tests/support/request_builder.h"

namespace norm::test {

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A normd on free ports, output in a file. Killed on destruction if it still runs.
class NormdProcess {
 public:
  explicit NormdProcess(std::vector<std::string> flags) {
    folder_ = testing::TempDir() + "/normd_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    std::vector<std::string> arguments = {NORMD_BINARY, "--device=cpu", "--listen=127.0.0.1:0",
                                          "--metrics_listen=127.0.0.1:0",
                                          "--port_file=" + folder_ + "/ports"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string output = folder_ + "/output";
    pid_ = fork();
    if (pid_ == 0) {
      const int fd = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(fd, STDOUT_FILENO);
      dup2(fd, STDERR_FILENO);
      execv(NORMD_BINARY, argv.data());
      _exit(127);
    }
  }
  ~NormdProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  bool AwaitReady() {
    return Await([this] { return !ReadFile(folder_ + "/ports").empty(); });
  }
  std::string Address(const std::string& which) const {
    for (absl::string_view line : absl::StrSplit(ReadFile(folder_ + "/ports"), '\n')) {
      if (absl::StartsWith(line, which + "=")) return std::string(line.substr(which.size() + 1));
    }
    return "";
  }
  /// A connection of its own.
  std::shared_ptr<grpc::Channel> OpenChannel(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials =
          grpc::InsecureChannelCredentials()) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(Address("grpc"), credentials, arguments);
  }
  std::unique_ptr<norm::v1::NormalizationService::Stub> Connect() const {
    return norm::v1::NormalizationService::NewStub(OpenChannel());
  }
  void Signal(int number) const { kill(pid_, number); }
  /// The exit code, or 1000 + the signal that killed it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  std::string output() const { return ReadFile(folder_ + "/output"); }

 private:
  std::string folder_;
  pid_t pid_ = -1;
};

/// One call of the canary request.
inline grpc::Status Canary(norm::v1::NormalizationService::Stub& stub) {
  grpc::ClientContext context;
  norm::v1::NormalizeResponse response;
  return stub.Normalize(&context, CanaryRequest(), &response);
}

}  // namespace norm::test
