// What the answers of a server mean.
#pragma once

#include <vector>

#include "client/normctl/doctor/finding.h"
#include "client/normctl/doctor/machine_facts.h"
#include "client/normctl/doctor/server_probe.h"

namespace norm::normctl {

/// `machine`: of normctl; what its GPUs reach is held against a server with GPUs of the same model.
std::vector<Finding> JudgeServer(const ServerFacts& facts, const MachineFacts& machine);

}  // namespace norm::normctl
