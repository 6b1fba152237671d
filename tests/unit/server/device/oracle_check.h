// Random inputs for a problem, and its result compared with the float64 oracle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/scheduler/job.h"
#include "tests/support/job_builder.h"

namespace norm::test {

/// The input bytes of one job, by role.
struct ProblemInputs {
  server::NormProblem problem;
  std::vector<std::string> bytes = std::vector<std::string>(server::kTensorRoleCount);
};

/// Normal values; variances are positive, saved statistics are not made (leave them out of inputs).
ProblemInputs RandomInputs(const server::NormProblem& problem, uint32_t seed);

JobBuilder BuilderFor(const ProblemInputs& inputs);

/// Every output of an OK result within the tolerance of its dtype around the oracle's value.
void ExpectMatchesOracle(const ProblemInputs& inputs, const server::JobResult& result);

/// Both results OK, every output equal bit by bit.
void ExpectSameBits(const ProblemInputs& inputs, const server::JobResult& one,
                    const server::JobResult& other);

/// The bytes of one output.
std::string OutputBytes(const server::JobResult& result, server::TensorRole role);

}  // namespace norm::test
