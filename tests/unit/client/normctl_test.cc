// The program as a person runs it: exit codes, what is printed, and files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/tensor_file/tensor_file.h"
#include "nlohmann/json.hpp"
#include "tests/unit/client/normctl_fixture.h"

namespace norm::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using std::string_literals::operator""s;

size_t Lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST_F(NormctlTest, WritesTheResultToAFile) {
  const Finished run = Normctl("rmsnorm --input " + kData + "/digits_nc.npy --output " +
                               (folder_ / "y.npy") + Server());
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.out, AllOf(HasSubstr("[96, 64]"), HasSubstr("rms_norm forward on cpu")));
  EXPECT_EQ(ScratchFolder::Read(folder_ / "y.npy"), ScratchFolder::Read(kData + "/digits_nc.npy"));
}

TEST_F(NormctlTest, ConvertsToAnotherDTypeAndPrintsJson) {
  const Finished run =
      Normctl("layernorm --json --dtype bf16 --input " + kData +
              "/embeddings.safetensors:x --output " + (folder_ / "y.safetensors") + Server());
  EXPECT_EQ(run.exit_code, 0) << run.error;
  const nlohmann::json report = nlohmann::json::parse(run.out, nullptr, false);
  ASSERT_FALSE(report.is_discarded()) << run.out;
  EXPECT_EQ(report["outputs"]["y"]["dtype"], "bf16");
  EXPECT_EQ(report["op"], "layer_norm");
  const Tensor y = *ReadTensor(folder_ / "y.safetensors:y");
  const Tensor expected = *ReadTensor(kData + "/embeddings.safetensors:x_bf16");
  EXPECT_EQ(std::memcmp(y.bytes().data(), expected.bytes().data(), expected.bytes().size()), 0);
}

TEST_F(NormctlTest, SendsABackward) {
  const std::string x = kData + "/embeddings.safetensors:x";
  const Finished run = Normctl(
      "batchnorm --backward --training --layout nhwc --input " + x + " --grad " + x + " --weight " +
      kData + "/embeddings.safetensors:weight --output " + (folder_ / "g.safetensors:dx") +
      " --dweight-output " + (folder_ / "g.safetensors:dw") + Server());
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(backward_.batch_norm().mode(), v1::BatchNorm::MODE_TRAINING);
  EXPECT_EQ(backward_.batch_norm().layout(), v1::BatchNorm::LAYOUT_NHWC);
  EXPECT_FALSE(backward_.omit_dweight());
  EXPECT_FALSE(backward_.has_bias());
  EXPECT_TRUE(ReadTensor(folder_ / "g.safetensors:dw").ok());
}

TEST_F(NormctlTest, SendsThePriority) {
  const std::string x = kData + "/embeddings.safetensors:x";
  std::atomic<int> bulk = -1;
  server_.on_forward = [&](grpc::ServerContext&, const v1::NormalizeRequest& request,
                           v1::NormalizeResponse& response) {
    bulk = request.priority() == v1::PRIORITY_BULK ? 1 : 0;
    *response.mutable_y() = request.x();
    return grpc::Status::OK;
  };
  EXPECT_EQ(Normctl("rmsnorm --priority bulk --input " + x + Server()).exit_code, 0);
  EXPECT_EQ(bulk, 1);
  EXPECT_EQ(Normctl("layernorm --input " + x + Server()).exit_code, 0);
  EXPECT_EQ(bulk, 0);
  EXPECT_EQ(
      Normctl("batchnorm --backward --training --layout nhwc --priority bulk --input " + x +
              " --grad " + x + " --weight " + kData + "/embeddings.safetensors:weight" + Server())
          .exit_code,
      0);
  EXPECT_EQ(backward_.priority(), v1::PRIORITY_BULK);
  EXPECT_EQ(
      Normctl("bench --shape 2x8 --priority bulk --warm-up 0 --duration 1" + Server()).exit_code,
      0);
  EXPECT_EQ(bulk, 1);
}

TEST_F(NormctlTest, ExitsWith1AndOneLineWhenTheServerRefuses) {
  std::string request_id;
  server_.on_forward = [&](grpc::ServerContext& context, const v1::NormalizeRequest&,
                           v1::NormalizeResponse&) {
    for (const auto& [key, value] : context.client_metadata()) {
      if (key == "x-request-id") request_id = std::string(value.data(), value.size());
    }
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "eps -1 < 0\nsecond line");
  };
  const Finished run = Normctl("rmsnorm --eps=-1 --input " + kData + "/digits_nc.npy" + Server());
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(request_id, testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_EQ(run.error,
            "normctl: INVALID_ARGUMENT: eps -1 < 0 second line (request id " + request_id + ")\n");
  EXPECT_EQ(run.out, "");
}

TEST_F(NormctlTest, ExitsWith1WhenAFileCannotBeUsed) {
  EXPECT_EQ(Normctl("rmsnorm --input /no/such.npy" + Server()).exit_code, 1);
  const Finished broken =
      Normctl("rmsnorm --input " + folder_.Write("b.npy", "\x93NUMPY") + Server());
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_EQ(Lines(broken.error), 1u);
  EXPECT_EQ(
      Normctl("rmsnorm --input " + kData + "/digits_nc.npy --output /no/such/y.npy" + Server())
          .exit_code,
      1);
  EXPECT_EQ(Normctl("rmsnorm --input " + kData + "/digits_nc.npy --rstd-output " +
                    (folder_ / "r.npy") + Server())
                .exit_code,
            1);
}

TEST_F(NormctlTest, ExitsWith2AndOneLineOnBadUsage) {
  const std::string input = " --input " + kData + "/digits_nc.npy";
  for (const std::string& arguments : {std::string(""),
                                       std::string("nosuch"),
                                       std::string("rmsnorm"),
                                       "rmsnorm --nosuch" + input,
                                       "rmsnorm --dtype f8" + input,
                                       "rmsnorm --eps abc" + input,
                                       "rmsnorm --timeout never" + input,
                                       "rmsnorm --timeout 0s" + input,
                                       "rmsnorm --backward" + input,
                                       "rmsnorm --grad g.npy" + input,
                                       "rmsnorm --output y.txt" + input,
                                       "rmsnorm --bias b.npy" + input,
                                       "rmsnorm --normalized-dims 0" + input,
                                       "batchnorm --momentum 0.1 --batches-tracked 3" + input,
                                       std::string("verify"),
                                       "rmsnorm --rstd r.npy" + input,
                                       "rmsnorm --server 127.0.0.1:111325" + input,
                                       "health --server 'local host:8470'"s,
                                       "info --server :8470"s,
                                       "verify m.json --server localhost"s,
                                       "bench --op softmax"s,
                                       "bench --op batch_norm --shape 4"s,
                                       "bench --shape 4x"s,
                                       "bench --shape 0x8"s,
                                       "bench --dtype f8"s,
                                       "bench --direction sideways"s,
                                       "bench --priority urgent"s,
                                       "bench --mix m.txt --priority bulk"s,
                                       "rmsnorm --priority urgent" + input,
                                       "bench --mix m.txt --op rms_norm"s,
                                       "bench --transport shm"s,
                                       "bench --echo=lots"s,
                                       "bench --rates 5"s,
                                       "bench --sweep --rate 5"s,
                                       "bench --sweep --rates 5,0"s,
                                       "bench --connections 0"s,
                                       "bench --in-flight many"s,
                                       "bench --rate 0"s,
                                       "bench --duration 0"s,
                                       "bench --timeout 0s"s,
                                       "bench --attempts 0"s}) {
    const Finished run = Normctl(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_EQ(Lines(run.error), 1u) << arguments << ": " << run.error;
    EXPECT_THAT(run.error, HasSubstr("normctl: "));
  }
}

TEST_F(NormctlTest, RefusesTwoOutputsOfOneNameBeforeAnyRequest) {
  int calls = 0;
  server_.on_backward = [&](grpc::ServerContext&, const v1::NormalizeBackwardRequest&,
                            v1::NormalizeBackwardResponse&) {
    ++calls;
    return grpc::Status::OK;
  };
  const std::string x = kData + "/embeddings.safetensors:x";
  std::filesystem::create_symlink(folder_ / "g.npy", folder_ / "link.npy");
  std::filesystem::create_symlink(folder_ / "f.safetensors", folder_ / "f.npy");
  for (const auto& [first, second] : std::vector<std::pair<std::string, std::string>>{
           {folder_ / "g.npy", folder_ / "g.npy"},
           {folder_ / "g.npy", folder_ / "none/.././g.npy"},
           {folder_ / "g.npy", folder_ / "link.npy"},
           {folder_ / "f.npy", folder_ / "f.safetensors:a"},
           {folder_ / "f.safetensors:a", folder_ / "./f.safetensors:a"},
           {folder_ / "f.safetensors", folder_ / "f.safetensors:dx"}}) {
    const Finished run = Normctl("rmsnorm --backward --input " + x + " --grad " + x + " --output " +
                                 first + " --dweight-output " + second + Server());
    EXPECT_EQ(run.exit_code, 2) << first << " " << second;
    EXPECT_EQ(Lines(run.error), 1u) << run.error;
  }
  EXPECT_EQ(calls, 0);
}

TEST_F(NormctlTest, AddsToASafetensorsFile) {
  std::filesystem::copy_file(kData + "/formats.safetensors", folder_ / "f.safetensors");
  const std::string input = "rmsnorm --input " + kData + "/digits_nc.npy --output ";
  const Finished run = Normctl(input + (folder_ / "f.safetensors:y") + Server());
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_TRUE(ReadTensor(folder_ / "f.safetensors:y").ok());
  EXPECT_EQ(ToDoubles(*ReadTensor(folder_ / "f.safetensors:f32")),
            ToDoubles(*ReadTensor(kData + "/formats.safetensors:f32")));
  const std::string other = folder_.Write("o.safetensors", "somebody's notes");
  const Finished refused = Normctl(input + other + ":y" + Server());
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(Lines(refused.error), 1u);
  EXPECT_THAT(refused.error, HasSubstr("o.safetensors"));
  EXPECT_EQ(ScratchFolder::Read(other), "somebody's notes");
}

TEST_F(NormctlTest, ExitsWith1WhenItsOutputCannotBeWritten) {
  for (const std::string& redirection : {">/dev/full"s, ">&-"s}) {
    for (const std::string& arguments :
         {"health" + Server(), "info --json" + Server(), "--help"s,
          "rmsnorm --input " + kData + "/digits_nc.npy" + Server()}) {
      const Finished run = Normctl(arguments, redirection);
      EXPECT_EQ(run.exit_code, 1) << arguments << redirection;
      EXPECT_EQ(Lines(run.error), 1u) << run.error;
      EXPECT_THAT(run.error, HasSubstr("stdout"));
    }
  }
}

TEST_F(NormctlTest, RefusesPipesAsInputs) {
  ASSERT_EQ(::mkfifo((folder_ / "p.npy").c_str(), 0600), 0);
  for (const std::string& arguments :
       {"rmsnorm --input " + (folder_ / "p.npy"), "verify " + (folder_ / "p.npy")}) {
    const Finished run = Normctl(arguments + Server());
    EXPECT_EQ(run.exit_code, 1) << arguments;
    EXPECT_THAT(run.error, HasSubstr("p.npy is not a regular file"));
  }
}

TEST_F(NormctlTest, ExitsWith3WhenNoServerListens) {
  const std::string server = Server();
  server_.Stop();
  for (const std::string& arguments :
       {"health --attempts 1"s, "info --attempts 1"s,
        "rmsnorm --attempts 1 --input " + kData + "/digits_nc.npy",
        "verify --attempts 1 " + kData + "/manifest.json", "bench"s}) {
    const Finished run = Normctl(arguments + server);
    EXPECT_EQ(run.exit_code, 3) << arguments;
    EXPECT_THAT(run.error, HasSubstr("normctl: server unreachable: UNAVAILABLE"));
  }
}

TEST_F(NormctlTest, BenchCountsErrorsByCode) {
  std::atomic<int> calls = 0;
  server_.on_forward = [&](grpc::ServerContext&, const v1::NormalizeRequest& request,
                           v1::NormalizeResponse& response) {
    const int call = calls.fetch_add(1);
    if (call % 3 == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "queue full");
    if (call % 3 == 2) return grpc::Status(grpc::StatusCode::INTERNAL, "broken");
    *response.mutable_y() = request.x();
    return grpc::Status::OK;
  };
  const Finished run = Normctl("bench --shape 2x8 --warm-up 0 --duration 0.2 --json " +
                               (folder_ / "b.json") + Server());
  EXPECT_EQ(run.exit_code, 0) << run.error;
  const nlohmann::json report =
      nlohmann::json::parse(ScratchFolder::Read(folder_ / "b.json"), nullptr, false);
  ASSERT_FALSE(report.is_discarded());
  // One worker, tried once: calls come in turn. The first is the try before the load.
  const int count = calls.load();
  EXPECT_EQ(report["requests"], count - 1);
  EXPECT_EQ(report["completed"], (count + 2) / 3 - 1);
  EXPECT_EQ(report["errors"].value("UNAVAILABLE", 0), (count + 1) / 3);
  EXPECT_EQ(report["errors"].value("INTERNAL", 0), count / 3);
  EXPECT_THAT(run.out, HasSubstr("errors"));
}

TEST_F(NormctlTest, BenchFailsWhenNoRequestSucceeds) {
  std::atomic<int> calls = 0;
  server_.on_forward = [&](grpc::ServerContext&, const v1::NormalizeRequest& request,
                           v1::NormalizeResponse& response) {
    *response.mutable_y() = request.x();
    return calls.fetch_add(1) == 0 ? grpc::Status::OK
                                   : grpc::Status(grpc::StatusCode::INTERNAL, "broken");
  };
  const Finished refused = Normctl("bench --warm-up 0 --duration 0.1" + Server());
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.out, HasSubstr("  INTERNAL"));
  EXPECT_EQ(refused.error, "normctl: INTERNAL: broken\n");
}

TEST_F(NormctlTest, BenchRefusesAnAnswerOfAnotherShape) {
  server_.on_forward = [](grpc::ServerContext&, const v1::NormalizeRequest& request,
                          v1::NormalizeResponse& response) {
    *response.mutable_y() = request.x();
    response.mutable_y()->set_shape(0, 1);
    response.mutable_y()->mutable_data()->resize(request.x().data().size() / 4);
    return grpc::Status::OK;
  };
  const Finished wrong = Normctl("bench --warm-up 0 --duration 0.1" + Server());
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_EQ(wrong.error,
            "normctl: INTERNAL: rms_norm forward 4x4096 bf16: the result is 1x4096 of bf16, not "
            "4x4096 of bf16\n");
}

TEST_F(NormctlTest, BenchShowsWhatAHungServerKeptFromBeingSent) {
  std::atomic<int> calls = 0;
  server_.on_forward = [&](grpc::ServerContext& context, const v1::NormalizeRequest& request,
                           v1::NormalizeResponse& response) {
    *response.mutable_y() = request.x();
    if (calls.fetch_add(1) == 0) return grpc::Status::OK;
    while (!context.IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grpc::Status::CANCELLED;
  };
  // The first request outlives the window, in which 20 are meant to leave.
  const Finished run =
      Normctl("bench --rate 100 --warm-up 0 --duration 0.2 --timeout 1s --json -" + Server());
  EXPECT_EQ(run.exit_code, 1);
  const nlohmann::json report = nlohmann::json::parse(run.out, nullptr, false);
  ASSERT_FALSE(report.is_discarded()) << run.out;
  EXPECT_EQ(report["errors"], nlohmann::json({{"DEADLINE_EXCEEDED", 1}}));
  EXPECT_EQ(report["not_sent"], 19);
  EXPECT_TRUE(report["latency_us"].is_null());
}

TEST_F(NormctlTest, ReportsHealthByItsExitCode) {
  EXPECT_EQ(Normctl("health" + Server()).out, "SERVING\n");
  server_.health()->SetServingStatus("", false);
  const Finished run = Normctl("health --json" + Server());
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("NOT_SERVING"));
  EXPECT_EQ(Normctl("health --service nosuch" + Server()).exit_code, 1);
}

TEST_F(NormctlTest, PrintsServerInfo) {
  server_.info.set_version("9.8.7");
  server_.info.add_devices()->set_name("cpu");
  const Finished text = Normctl("info" + Server());
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("normd 9.8.7"), HasSubstr("device cpu"), HasSubstr("12 ok")));
  const Finished json = Normctl("info --json" + Server());
  EXPECT_EQ(nlohmann::json::parse(json.out, nullptr, false)["version"], "9.8.7");
}

TEST_F(NormctlTest, VerifyFailsOnAWrongResult) {
  const std::string digits = kData + "/digits_nc.npy";
  std::string manifest =
      R"({"cases":[{"name":"echo","op":"rms_norm","direction":"forward","options":{},"inputs":{"x":"D"},)"
      R"("outputs":{"y":{"golden":"D","tolerance":{"relative":0,"of":"value"}}}}]})";
  std::filesystem::copy_file(digits, folder_ / "D.npy");
  for (size_t at = manifest.find("\"D\""); at != std::string::npos; at = manifest.find("\"D\"")) {
    manifest.replace(at, 3, "\"D.npy\"");
  }
  const std::string path = folder_.Write("m.json", manifest);
  const Finished right = Normctl("verify " + path + Server());
  EXPECT_EQ(right.exit_code, 0) << right.error;
  EXPECT_THAT(right.out, AllOf(HasSubstr("96x64"), HasSubstr("1 passed, 0 failed")));
  server_.on_forward = [](grpc::ServerContext&, const v1::NormalizeRequest& request,
                          v1::NormalizeResponse& response) {
    *response.mutable_y() = request.x();
    (*response.mutable_y()->mutable_data())[4 * 70 + 3] ^= 1;
    return grpc::Status::OK;
  };
  const Finished wrong = Normctl("verify " + path + Server());
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.out, AllOf(HasSubstr("MISMATCH"), HasSubstr("0 passed, 1 failed")));
  EXPECT_THAT(wrong.error,
              HasSubstr("1 of 6144 elements outside the tolerance, the first at index 70"));
  const Finished json = Normctl("verify --json " + path + Server());
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_EQ(nlohmann::json::parse(json.out, nullptr, false)["failed"], 1);
}

}  // namespace
}  // namespace norm::client
