// `normctl bench` against a server in this process.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "grpcpp/grpcpp.h"
#include "nlohmann/json.hpp"
#include "norm/v1/server.grpc.pb.h"
#include "tests/integration/await.h"
#include "tests/support/cpu_server.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::server {

class NormctlBenchTest : public testing::Test {
 protected:
  /// Runs `normctl bench` with `arguments`; its exit code.
  int Bench(const std::string& arguments) { return BenchAgainst(cpu_, arguments); }

  int BenchAgainst(norm::test::CpuServer& cpu, const std::string& arguments) {
    const std::string command = std::string(NORMCTL_PATH) + " bench --server " +
                                cpu.server.address() + " " + arguments + " >" + out_ + " 2>" +
                                out_ + ".err";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  /// What the server counted once `requests` have ended there.
  norm::v1::ServerStatistics Statistics(uint64_t requests) {
    auto stub = norm::v1::ServerService::NewStub(cpu_.server.Connect());
    norm::v1::ServerStatistics statistics;
    EXPECT_TRUE(norm::test::Await([&] {
      grpc::ClientContext context;
      return stub->GetStatistics(&context, {}, &statistics).ok() &&
             statistics.requests_ok() + statistics.requests_failed() >= requests &&
             statistics.in_flight_requests() == 0;
    }));
    return statistics;
  }

  /// The JSON that `arguments` write to stdout.
  nlohmann::json Report(const std::string& arguments) {
    EXPECT_EQ(Bench(arguments + " --json -"), 0) << Errors();
    const nlohmann::json report =
        nlohmann::json::parse(norm::client::ScratchFolder::Read(out_), nullptr, false);
    EXPECT_FALSE(report.is_discarded()) << norm::client::ScratchFolder::Read(out_);
    return report;
  }

  std::string Errors() const { return norm::client::ScratchFolder::Read(out_ + ".err"); }

  norm::test::CpuServer cpu_;
  norm::client::ScratchFolder folder_;
  const std::string out_ = folder_ / "out";
};

}  // namespace norm::server
