// What the doctor reads from NVIDIA's libraries, ports and servers: from libraries of this test, sockets and servers in
// this process.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>

#include "client/normctl/doctor/driver_probe.h"
#include "client/normctl/doctor/machine_probe.h"
#include "client/normctl/doctor/port_probe.h"
#include "client/normctl/doctor/server_probe.h"
#include "tests/support/loopback_listener.h"
#include "tests/unit/client/fake_server.h"

namespace norm::normctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DriverProbeTest : public ::testing::Test {
 protected:
  static DriverFacts Look(const char* settings, CopyTiming timing = CopyTiming::kMeasured) {
    setenv("FAKE_CUDA", settings, 1);
    DriverFacts facts = LookAtDriver(FAKE_CUDA_LIBRARY, timing);
    management_ = LookAtManagement(FAKE_CUDA_LIBRARY, &facts);
    return facts;
  }
  void TearDown() override {
    unsetenv("FAKE_CUDA");
    void* const library = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW);
    EXPECT_EQ(reinterpret_cast<int (*)()>(dlsym(library, "fake_cuda_opened"))(), 0)
        << "not all is given back";
  }

  static ManagementFacts management_;
};
ManagementFacts DriverProbeTest::management_;

TEST_F(DriverProbeTest, TellsWhatAGpuIsAndHowFastItCopies) {
  const DriverFacts facts = Look("driver=13010 cc=75 ms=2");
  EXPECT_EQ(facts.cuda_version, 13010);
  ASSERT_EQ(facts.gpus.size(), 1U);
  const GpuFacts& gpu = facts.gpus[0];
  EXPECT_EQ(gpu.name, "Fake GPU");
  EXPECT_EQ(gpu.compute_capability, 75);
  EXPECT_EQ(gpu.multiprocessors, 132);
  EXPECT_EQ(gpu.memory_bytes, int64_t{16} << 30);
  EXPECT_EQ(gpu.memory_bandwidth, 1024e9);  // 1 GHz, two transfers, 512 bytes
  EXPECT_EQ(gpu.pci_bus_id, "0000:3b:00.0");
  ASSERT_TRUE(gpu.copies.has_value());
  EXPECT_NEAR(gpu.copies->to_device, (64 << 20) / 2e-3, 1);
  EXPECT_NEAR(gpu.copies->on_device, 2.0 * (512 << 20) / 2e-3, 1);
  EXPECT_EQ(gpu.link->generation, 5);
  EXPECT_EQ(gpu.link->width, 16);
  EXPECT_THAT(gpu.slowed_by, IsEmpty());
  EXPECT_EQ(management_.driver_version, "580.1");
  EXPECT_EQ(management_.gpus, 1);
}

TEST_F(DriverProbeTest, TellsTheDriversError) {
  const DriverFacts facts = Look("init=100");
  ASSERT_TRUE(facts.error.has_value());
  EXPECT_EQ(facts.error->code, 100);
  EXPECT_EQ(facts.error->what, "cuInit: CUDA_ERROR_NO_DEVICE: as asked for");
  EXPECT_THAT(facts.gpus, IsEmpty());
}

TEST_F(DriverProbeTest, TellsThatACopyFailedAndGivesEverythingBack) {
  for (const int code : {2, 700}) {
    const DriverFacts facts = Look(("copy=" + std::to_string(code)).c_str());
    ASSERT_EQ(facts.gpus.size(), 1U);
    EXPECT_FALSE(facts.gpus[0].copies.has_value());
    EXPECT_EQ(facts.gpus[0].copy_error->code, code);
  }
}

TEST_F(DriverProbeTest, TellsWhatSlowsAndWhatBreaksAGpu) {
  const DriverFacts facts = Look("slow=0x44 ecc=3 width=8 gpus=2 all_gpus=2", CopyTiming::kSkipped);
  EXPECT_THAT(facts.gpus[0].slowed_by,
              ElementsAre("software power cap", "hardware thermal slowdown"));
  EXPECT_EQ(facts.gpus[0].uncorrected_memory_errors, 3);
  EXPECT_EQ(facts.gpus[0].link->width, 8);
  EXPECT_FALSE(facts.gpus[0].copies.has_value());
  EXPECT_FALSE(facts.gpus[1].link.has_value());  // NVML does not know it
}

TEST_F(DriverProbeTest, WithoutLibrariesThereAreNoFacts) {
  DriverFacts facts = LookAtDriver("libcuda-that-is-not-here.so.1", CopyTiming::kMeasured);
  EXPECT_THAT(facts.library_error, HasSubstr("libcuda-that-is-not-here.so.1"));
  EXPECT_EQ(LookAtManagement("libnvidia-ml-that-is-not-here.so.1", &facts).driver_version, "");
  EXPECT_EQ(LookAtRuntime("libcudart-that-is-not-here.so.13"), 0);
  setenv("FAKE_CUDA", "runtime=13020", 1);
  EXPECT_EQ(LookAtRuntime(FAKE_CUDA_LIBRARY), 13020);
}

TEST_F(DriverProbeTest, ADriverWithoutAFunctionSaysWhich) {
  const DriverFacts facts = LookAtDriver("libm.so.6", CopyTiming::kMeasured);
  ASSERT_TRUE(facts.error.has_value());
  EXPECT_EQ(facts.error->what, "cuDriverGetVersion: not in this driver");
}

TEST(MachineProbeTest, LooksAtThisMachine) {
  setenv("CUDA_VISIBLE_DEVICES", "7", 1);
  const MachineFacts facts = LookAtMachine({.version = "1.2.3"}, CopyTiming::kSkipped);
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(facts.build.version, "1.2.3");
  EXPECT_EQ(facts.environment.at("CUDA_VISIBLE_DEVICES"), "7");
  EXPECT_NE(facts.limits.open_files, 0);
  EXPECT_GT(facts.unix_seconds, 1767225600);
}

/// Answers the first bytes of one connection with `answer`.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer)
      : answer_(std::move(answer)), thread_([this] {
          const int fd = listener_.Accept();
          char byte = 0;
          if (fd >= 0 && read(fd, &byte, 1) == 1) {
            EXPECT_EQ(write(fd, answer_.data(), answer_.size()),
                      static_cast<ssize_t>(answer_.size()));
          }
          close(fd);
        }) {}
  ~OneAnswer() {
    listener_.Stop();
    thread_.join();
  }
  const std::string& address() const { return listener_.address(); }

 private:
  const std::string answer_;
  const test::LoopbackListener listener_;
  std::thread thread_;
};

constexpr absl::Duration kTimeout = absl::Seconds(30);

TEST(PortProbeTest, TellsWhatAPortSpeaks) {
  const OneAnswer tls(std::string("\x15\x03\x03\0\2\2\x46", 7));
  EXPECT_EQ(ProbePort(tls.address(), kTimeout).speech, PortSpeech::kTls);
  const OneAnswer http("HTTP/2.0 400 Bad Request\r\n\r\n");  // as the metrics port answers
  EXPECT_EQ(ProbePort(http.address(), kTimeout).speech, PortSpeech::kTextHttp);
  const OneAnswer closed("");
  EXPECT_EQ(ProbePort(closed.address(), kTimeout).speech, PortSpeech::kNothing);
  const OneAnswer other("hello");
  EXPECT_EQ(ProbePort(other.address(), kTimeout).speech, PortSpeech::kUnknown);
  client::FakeServer server;
  const PortFacts facts = ProbePort(server.address(), kTimeout);
  EXPECT_EQ(facts.state, PortState::kOpen);
  EXPECT_EQ(facts.speech, PortSpeech::kPlainHttp2);
}

TEST(PortProbeTest, TellsWhyAPortIsNotOpen) {
  client::FakeServer server;
  const std::string address = server.address();
  server.Stop();
  const PortFacts refused = ProbePort(address, kTimeout);
  EXPECT_EQ(refused.state, PortState::kRefused);
  EXPECT_EQ(refused.detail, "Connection refused");
  EXPECT_EQ(ProbePort("no-such-host.invalid:8470", kTimeout).state, PortState::kNoName);
  EXPECT_EQ(ProbePort("unix:/run/normd.sock", kTimeout).state, PortState::kNotTried);
  EXPECT_EQ(ProbePort("ipv4:127.0.0.1:1,127.0.0.2:1", kTimeout).state, PortState::kNotTried);
}

class ServerProbeTest : public ::testing::Test {
 protected:
  ServerFacts Look() {
    const auto client = *client::Client::Create(server_.address(), {.retry = {.max_attempts = 1}});
    return LookAtServer(server_.address(), client.get(), kTimeout);
  }

  /// A LayerNorm of the rows that come, wrong by `error`.
  void Answer(float error, const std::string& device) {
    server_.on_forward = [error, device](grpc::ServerContext&, const v1::NormalizeRequest& request,
                                         v1::NormalizeResponse& response) {
      const std::string& bytes = request.x().data();
      std::vector<float> x(bytes.size() / sizeof(float));
      std::memcpy(x.data(), bytes.data(), bytes.size());
      for (size_t i = 0; i < x.size(); ++i) {
        const double exact = (0.5 * static_cast<double>(i % 8) - 1.75) / std::sqrt(1.3125 + 1e-5);
        x[i] = static_cast<float>(exact) + error;
      }
      *response.mutable_y() = request.x();
      response.mutable_y()->set_data(x.data(), bytes.size());
      response.mutable_timing()->set_device(device);
      response.mutable_timing()->set_kernel_us(16.777216);
      return grpc::Status::OK;
    };
  }

  client::FakeServer server_;
};

TEST_F(ServerProbeTest, AsksForEverything) {
  Answer(0, "cuda:0");
  server_.info.set_version("1.2.3");
  server_.info.set_unix_time_seconds(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) + 3600);
  const ServerFacts facts = Look();
  ASSERT_THAT(facts.failures, IsEmpty());
  EXPECT_EQ(facts.port.state, PortState::kOpen);
  EXPECT_EQ(facts.health, client::Health::kServing);
  EXPECT_EQ(facts.info->version, "1.2.3");
  EXPECT_NEAR(absl::ToDoubleMinutes(*facts.clock_ahead), 60, 1);
  EXPECT_LT(*facts.error, 1e-6);
  EXPECT_EQ(facts.device, "cuda:0");
  EXPECT_NEAR(*facts.kernel_rate, 1e12, 1e6);  // 16 MiB in 16.777216 us
}

TEST_F(ServerProbeTest, MeasuresTheErrorAndSeesNan) {
  Answer(0.25F, "cpu");
  const ServerFacts wrong = Look();
  EXPECT_NEAR(*wrong.error, 0.25, 1e-5);
  EXPECT_FALSE(wrong.kernel_rate.has_value());
  EXPECT_FALSE(wrong.clock_ahead.has_value());  // no time in the answer
  Answer(std::nanf(""), "cpu");
  EXPECT_TRUE(std::isnan(*Look().error));
}

TEST_F(ServerProbeTest, AsksOnAfterARefusalAndEndsWithoutAConnection) {
  server_.on_forward = [](grpc::ServerContext&, const v1::NormalizeRequest&,
                          v1::NormalizeResponse&) {
    return grpc::Status(grpc::StatusCode::INTERNAL, "an illegal memory access was encountered");
  };
  const ServerFacts facts = Look();
  ASSERT_EQ(facts.failures.size(), 1U);
  EXPECT_EQ(facts.failures[0].name, "layer_norm");
  EXPECT_EQ(facts.failures[0].status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(facts.info.has_value());
  EXPECT_FALSE(facts.error.has_value());
  EXPECT_FALSE(IsUnreachable(facts));
  server_.Stop();
  const ServerFacts gone = Look();
  ASSERT_EQ(gone.failures.size(), 1U);
  EXPECT_EQ(gone.failures[0].name, "health");
  EXPECT_TRUE(IsUnreachable(gone));
}

TEST_F(ServerProbeTest, WithoutAClientItLooksAtThePortAlone) {
  const ServerFacts facts = LookAtServer(server_.address(), nullptr, kTimeout);
  EXPECT_EQ(facts.port.speech, PortSpeech::kPlainHttp2);
  EXPECT_THAT(facts.failures, IsEmpty());
  EXPECT_FALSE(facts.health.has_value());
  EXPECT_FALSE(IsUnreachable(facts));
  server_.Stop();
  EXPECT_TRUE(IsUnreachable(LookAtServer(server_.address(), nullptr, kTimeout)));
}

}  // namespace
}  // namespace norm::normctl
