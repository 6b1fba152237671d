// Every finding about a machine, from facts written by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "client/normctl/doctor/architectures.h"
#include "client/normctl/doctor/machine_findings.h"
#include "tests/unit/client/doctor/expected_findings.h"

namespace norm::normctl {
namespace {

/// No driver, no GPU, built with CUDA.
MachineFacts WithoutGpu() {
  MachineFacts facts = Healthy();
  facts.device_nodes.clear();
  facts.kernel_driver_version.clear();
  facts.driver = {.library_error = "libcuda.so.1: cannot open shared object file"};
  facts.management = {};
  return facts;
}

struct Case {
  std::string name;
  std::function<void(MachineFacts*)> change;
  ExpectedFinding expected;
};

TEST(MachineFindingsTest, AHealthyMachineHasNone) {
  for (const Finding& finding : JudgeGpus(Healthy(), WantedDevice::kCuda))
    EXPECT_EQ(finding.severity, Severity::kOk) << finding.check << ": " << finding.seen;
  for (const Finding& finding : JudgeSystem(Healthy()))
    EXPECT_EQ(finding.severity, Severity::kOk) << finding.seen;
}

TEST(MachineFindingsTest, DriverLibraryAndVersions) {
  const std::vector<Case> cases = {
      {"CPU build",
       [](MachineFacts* facts) {
         facts->build = {.version = "1", .cuda_version = 0, .architectures = {}};
       },
       Severity::kNote, "build", "built without CUDA", "nvcc"},
      {"container without compute",
       [](MachineFacts* facts) {
         facts->driver = {.library_error = "libcuda.so.1: not found"};
         facts->environment["NVIDIA_DRIVER_CAPABILITIES"] = "utility";
       },
       Severity::kError, "driver library", "kernel driver 580.95.05 is here",
       "must name compute (now 'utility')"},
      {"old driver", [](MachineFacts* facts) { facts->driver.cuda_version = 12040; },
       Severity::kError, "driver",
       "driver 580.95.05 supports CUDA up to 12.4, this build is of CUDA 13.0",
       "update the driver"},
      {"older minor driver",
       [](MachineFacts* facts) {
         facts->build.cuda_version = 13020;
         facts->runtime_version = 13020;
       },
       Severity::kNote, "driver", "PTX for later GPUs does not", "update"},
      {"old runtime",
       [](MachineFacts* facts) {
         facts->build.cuda_version = 13020;
         facts->driver.cuda_version = 13020;
       },
       Severity::kWarning, "runtime", "the libcudart that is found is 13.0, older than the 13.2",
       "LD_LIBRARY_PATH"},
      {"no runtime library", [](MachineFacts* facts) { facts->runtime_version = 0; },
       Severity::kNote, "runtime", "no libcudart.so.13", "beside normd"},
      {"stub",
       [](MachineFacts* facts) {
         facts->driver = {.library_error = "",
                          .error = DriverError{34, "cuInit: CUDA_ERROR_STUB_LIBRARY"}};
         facts->environment["LD_LIBRARY_PATH"] = "/usr/local/cuda/lib64/stubs";
       },
       Severity::kError, "driver", "STUB", "/usr/local/cuda/lib64/stubs"},
      {"updated under way",
       [](MachineFacts* facts) {
         facts->driver.error = DriverError{803, "mismatch"};
       },
       Severity::kError, "driver", "mismatch", "reboot after the update"},
      {"compatibility",
       [](MachineFacts* facts) {
         facts->driver.error = DriverError{804, "compat"};
       },
       Severity::kError, "driver", "compat", "cuda-compat"},
      {"fabric manager",
       [](MachineFacts* facts) {
         facts->driver.error = DriverError{802, "not ready"};
       },
       Severity::kError, "driver", "not ready", "fabricmanager"},
      {"exclusive",
       [](MachineFacts* facts) {
         facts->driver.error = DriverError{46, "unavailable"};
       },
       Severity::kError, "driver", "unavailable", "nvidia-smi -c DEFAULT"},
      {"no uvm",
       [](MachineFacts* facts) {
         facts->device_nodes.pop_back();
         facts->driver.error = DriverError{999, "unknown"};
       },
       Severity::kError, "driver", "unknown", "/dev/nvidia-uvm is not here"},
      {"unknown",
       [](MachineFacts* facts) {
         facts->driver.error = DriverError{999, "unknown"};
       },
       Severity::kError, "driver", "unknown", "dmesg"},
  };
  for (const Case& one : cases) {
    MachineFacts facts = Healthy();
    one.change(&facts);
    Expect(one.name, JudgeGpus(facts, WantedDevice::kAuto), one.expected);
  }
}

TEST(MachineFindingsTest, WhatContainersAndVariablesHide) {
  const DriverError none{100, "cuInit: CUDA_ERROR_NO_DEVICE"};
  const std::vector<Case> cases = {
      {"hidden",
       [&](MachineFacts* facts) {
         facts->driver.gpus.clear();
         facts->driver.error = none;
         facts->environment["CUDA_VISIBLE_DEVICES"] = "";
       },
       Severity::kError, "devices", "CUDA_VISIBLE_DEVICES='' hides GPUs: all 1", "unset it"},
      {"hidden, driver says none",
       [](MachineFacts* facts) {
         facts->driver.gpus.clear();
         facts->environment["CUDA_VISIBLE_DEVICES"] = "-1";
       },
       Severity::kError, "devices", "hides GPUs", "unset it"},
      {"bad ordinal",
       [](MachineFacts* facts) { facts->environment["CUDA_VISIBLE_DEVICES"] = "0,3"; },
       Severity::kError, "devices", "ordinal 3 is not in [0, 0]", "nvidia-smi -L"},
      {"some hidden",
       [](MachineFacts* facts) {
         facts->management.gpus = 8;
         facts->environment["CUDA_VISIBLE_DEVICES"] = "0";
       },
       Severity::kNote, "devices", "1 of 8 GPUs are visible", "unset it"},
      {"container without GPUs",
       [&](MachineFacts* facts) {
         facts->device_nodes = {"/dev/nvidiactl"};
         facts->management.gpus = 0;
         facts->driver.gpus.clear();
         facts->driver.error = none;
         facts->environment["NVIDIA_VISIBLE_DEVICES"] = "void";
       },
       Severity::kWarning, "devices", "NVIDIA_VISIBLE_DEVICES='void'", "--gpus all"},
      {"GPU not usable",
       [&](MachineFacts* facts) {
         facts->driver.gpus.clear();
         facts->driver.error = none;
       },
       Severity::kError, "devices", "NO_DEVICE", "Xid"},
  };
  for (const Case& one : cases) {
    MachineFacts facts = Healthy();
    one.change(&facts);
    Expect(one.name, JudgeGpus(facts, WantedDevice::kAuto), one.expected);
  }
}

TEST(MachineFindingsTest, WithoutADriverItDependsOnWhatIsWanted) {
  Expect("auto", JudgeGpus(WithoutGpu(), WantedDevice::kAuto),
         {Severity::kWarning, "driver library", "no NVIDIA driver: libcuda.so.1", "--device=cpu"});
  Expect("cuda", JudgeGpus(WithoutGpu(), WantedDevice::kCuda),
         {Severity::kError, "driver library", "no NVIDIA driver", "install"});
  EXPECT_EQ(JudgeGpus(WithoutGpu(), WantedDevice::kCpu).size(), 1U);  // the build
  MachineFacts container = WithoutGpu();
  container.environment["NVIDIA_VISIBLE_DEVICES"] = "all";
  Expect("container", JudgeGpus(container, WantedDevice::kAuto),
         {Severity::kWarning, "driver library", "NVIDIA_VISIBLE_DEVICES is 'all'", "--gpus all"});
}

TEST(MachineFindingsTest, GpusAndTheirCopies) {
  const auto gpu = [](const std::function<void(GpuFacts&)>& change) {
    return [change](MachineFacts* facts) { change(facts->driver.gpus[0]); };
  };
  const std::vector<Case> cases = {
      {"no image", gpu([](GpuFacts& one) { one.compute_capability = 80; }), Severity::kError,
       "cuda:0", "no kernel image: this build is for 75-real 90-real 120",
       "NORM_CUDA_ARCHITECTURES=80-real"},
      {"illegal access", gpu([](GpuFacts& one) {
         one.copies.reset();
         one.copy_error = DriverError{700, "illegal address"};
       }),
       Severity::kError, "cuda:0 memory", "a copy failed: illegal address", "compute-sanitizer"},
      {"full", gpu([](GpuFacts& one) {
         one.copies.reset();
         one.copy_error = DriverError{2, "out of memory"};
       }),
       Severity::kError, "cuda:0 memory", "out of memory",
       "another process holds the GPU's memory"},
      {"lanes", gpu([](GpuFacts& one) { one.link->width = 8; }), Severity::kWarning, "cuda:0 pcie",
       "the GPU has 16 lanes", "seat"},
      {"slow pcie", gpu([](GpuFacts& one) { one.copies->from_device = 30e9; }), Severity::kWarning,
       "cuda:0 pcie", "30.0 back, of 63 GB/s of generation 5 x16", "numactl"},
      {"slow memory", gpu([](GpuFacts& one) { one.copies->on_device = 2e12; }), Severity::kWarning,
       "cuda:0 memory", "2000 GB/s of 4900", "kernels are slow"},
      {"throttled", gpu([](GpuFacts& one) { one.slowed_by = {"hardware thermal slowdown"}; }),
       Severity::kWarning, "cuda:0 memory", "clocks are lowered: hardware thermal slowdown",
       "PERFORMANCE"},
      {"memory errors", gpu([](GpuFacts& one) { one.uncorrected_memory_errors = 3; }),
       Severity::kError, "cuda:0 memory", "3 uncorrected memory errors", "NaN"},
  };
  for (const Case& one : cases) {
    MachineFacts facts = Healthy();
    one.change(&facts);
    Expect(one.name, JudgeGpus(facts, WantedDevice::kAuto), one.expected);
  }
  MachineFacts unknown = Healthy();
  unknown.driver.gpus[0].link.reset();
  Expect("no NVML", JudgeGpus(unknown, WantedDevice::kCuda),
         {Severity::kOk, "cuda:0 pcie", "is not known", ""});
}

TEST(MachineFindingsTest, TheSystemsLimits) {
  const std::vector<Case> cases = {
      {"docker's /dev/shm", [](MachineFacts* facts) { facts->shared_memory_bytes = 64 << 20; },
       Severity::kNote, "/dev/shm", "64 MiB", "--shm-size=1g"},
      {"no /dev/shm", [](MachineFacts* facts) { facts->shared_memory_bytes = -1; }, Severity::kNote,
       "/dev/shm", "is not here", "tmpfs"},
      {"files", [](MachineFacts* facts) { facts->limits.open_files = 1024; }, Severity::kWarning,
       "open files", "at most 1024: about 512 connections", "LimitNOFILE"},
      {"locked", [](MachineFacts* facts) { facts->limits.locked_bytes = 8 << 20; }, Severity::kNote,
       "locked memory", "at most 8 MiB", "none for normd"},
      {"container", [](MachineFacts* facts) { facts->limits.container_bytes = int64_t{4} << 30; },
       Severity::kWarning, "memory limit", "4.0 GiB", "--receive_quota_bytes"},
      {"clock", [](MachineFacts* facts) { facts->unix_seconds = 0; }, Severity::kError, "clock",
       "1970-01-01", "NTP"},
  };
  for (const Case& one : cases) {
    MachineFacts facts = Healthy();
    one.change(&facts);
    Expect(one.name, JudgeSystem(facts), one.expected);
  }
}

TEST(ArchitecturesTest, MachineCodeFitsItsMajorVersionAndPtxLaterOnes) {
  EXPECT_TRUE(HasImage({"80-real"}, 80));
  EXPECT_TRUE(HasImage({"80-real"}, 86));
  EXPECT_FALSE(HasImage({"86-real"}, 80));
  EXPECT_FALSE(HasImage({"80-real"}, 90));
  EXPECT_TRUE(HasImage({"80-virtual"}, 90));
  EXPECT_FALSE(HasImage({"90-virtual"}, 80));
  EXPECT_TRUE(HasImage({"75-real", "80"}, 120));
  EXPECT_TRUE(HasImage({"90a-real"}, 90));
  EXPECT_FALSE(HasImage({"90a"}, 100));
  EXPECT_FALSE(HasImage({}, 90));
  EXPECT_FALSE(HasImage({"native"}, 90));
}

TEST(DoctorReportTest, TextAndJsonHoldEachFinding) {
  const std::vector<Finding> findings = {
      {Severity::kOk, "clock", "right", ""},
      {Severity::kWarning, "open files", "at most 9", "raise it"},
      {Severity::kError, "cuda:0", "no kernel image", "build"}};
  EXPECT_EQ(DoctorText(findings),
            "ok       clock: right\n"
            "warning  open files: at most 9\n"
            "         -> raise it\n"
            "error    cuda:0: no kernel image\n"
            "         -> build\n"
            "1 errors, 1 warnings\n");
  EXPECT_EQ(DoctorJson({findings[0], findings[2]}), R"({
  "errors": 1,
  "findings": [
    {
      "check": "clock",
      "cure": null,
      "seen": "right",
      "severity": "ok"
    },
    {
      "check": "cuda:0",
      "cure": "build",
      "seen": "no kernel image",
      "severity": "error"
    }
  ],
  "warnings": 0
}
)");
}

}  // namespace
}  // namespace norm::normctl
