// normctl as a process, and a server whose answers a test writes.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::client {

inline const std::string kData = NORM_TEST_DATA_DIR;

struct Finished {
  int exit_code = -1;
  std::string out;
  std::string error;
};

class NormctlTest : public ::testing::Test {
 protected:
  NormctlTest() {
    server_.on_forward = [](grpc::ServerContext&, const v1::NormalizeRequest& request,
                            v1::NormalizeResponse& response) {
      *response.mutable_y() = request.x();
      response.mutable_timing()->set_device("cpu");
      return grpc::Status::OK;
    };
    server_.on_backward = [this](grpc::ServerContext&, const v1::NormalizeBackwardRequest& request,
                                 v1::NormalizeBackwardResponse& response) {
      backward_ = request;
      *response.mutable_dx() = request.dy();
      *response.mutable_dweight() = request.weight();
      return grpc::Status::OK;
    };
  }

  /// `redirections` come last and win.
  Finished Normctl(const std::string& arguments, const std::string& redirections = "") {
    const std::string command = std::string(NORMCTL_PATH) + " " + arguments + " >" +
                                (folder_ / "out") + " 2>" + (folder_ / "err") + " </dev/null " +
                                redirections;
    const int status = std::system(command.c_str());
    return Finished{WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                    ScratchFolder::Read(folder_ / "out"), ScratchFolder::Read(folder_ / "err")};
  }
  std::string Server() const { return " --server " + server_.address(); }

  FakeServer server_;
  v1::NormalizeBackwardRequest backward_;
  ScratchFolder folder_;
};

}  // namespace norm::client
