// Facts of a machine where everything is right, and what a test expects of findings.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "client/normctl/doctor/doctor_report.h"
#include "client/normctl/doctor/machine_facts.h"

namespace norm::normctl {

/// A machine where everything is right: one H200, as it was measured.
inline MachineFacts Healthy() {
  MachineFacts facts;
  facts.build = {
      .version = "1.2.3", .cuda_version = 13000, .architectures = {"75-real", "90-real", "120"}};
  facts.device_nodes = {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"};
  facts.kernel_driver_version = "580.95.05";
  facts.runtime_version = 13000;
  facts.driver.cuda_version = 13000;
  GpuFacts gpu;
  gpu.name = "NVIDIA H200";
  gpu.compute_capability = 90;
  gpu.memory_bandwidth = 4.9e12;
  gpu.copies = CopyBandwidth{.to_device = 55e9, .from_device = 55e9, .on_device = 4.26e12};
  gpu.link = PcieLink{.generation = 5, .width = 16, .max_width = 16};
  facts.driver.gpus = {gpu};
  facts.management = {.driver_version = "580.95.05", .gpus = 1};
  facts.shared_memory_bytes = int64_t{8} << 30;
  facts.limits = {.open_files = 65536, .locked_bytes = -1, .container_bytes = -1};
  facts.unix_seconds = 1798675200;
  return facts;
}

struct ExpectedFinding {
  Severity severity;
  std::string check;
  std::string seen;  // a part of it
  std::string cure;  // likewise
};

/// The finding is there, and none is worse.
inline void Expect(const std::string& name, const std::vector<Finding>& findings,
                   const ExpectedFinding& expected) {
  const auto found = std::find_if(findings.begin(), findings.end(), [&](const Finding& finding) {
    return finding.severity == expected.severity && finding.check == expected.check &&
           finding.seen.find(expected.seen) != std::string::npos &&
           finding.cure.find(expected.cure) != std::string::npos;
  });
  EXPECT_NE(found, findings.end()) << name << ":\n" << DoctorText(findings);
  for (const Finding& finding : findings)
    EXPECT_LE(finding.severity, expected.severity) << name << ": " << finding.seen;
}

}  // namespace norm::normctl
