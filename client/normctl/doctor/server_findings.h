// What the answers of a server mean.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/normctl/doctor/finding.h"
#include "client/normctl/doctor/machine_facts.h"
#include "client/normctl/doctor/server_probe.h"

namespace norm::normctl {

/// `machine`: of normctl; what its GPUs reach is held against a server with GPUs of the same model.
/// A refusal of one area is a warning where the other answers: health, and what the caller may see, are
/// judged without it.
std::vector<Finding> JudgeServer(const ServerFacts& facts, const MachineFacts& machine);

/// Why a client for `address` could not be made: a token, certificate or key that cannot be used.
Finding JudgeCredentials(const std::string& address, const absl::Status& status);

}  // namespace norm::normctl
