// What the facts of a machine mean for a normd there.
#pragma once

#include <cstdint>
#include <vector>

#include "client/normctl/doctor/finding.h"
#include "client/normctl/doctor/machine_facts.h"

namespace norm::normctl {

/// As normd's --device: kAuto is content with the CPU, kCuda is not, kCpu looks for no GPU.
enum class WantedDevice : uint8_t { kAuto, kCuda, kCpu };

/// In the order in which one depends on the other: build, driver, versions, GPUs.
std::vector<Finding> JudgeGpus(const MachineFacts& facts, WantedDevice wanted);

/// Memory, descriptors, the clock.
std::vector<Finding> JudgeSystem(const MachineFacts& facts);

}  // namespace norm::normctl
