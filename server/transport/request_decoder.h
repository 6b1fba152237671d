// From the header of a request to a Job: every rule of the wire contract is checked here, and
// nowhere after.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_reader.h"
#include "server/scheduler/job.h"
#include "server/transport/tensor_check.h"

namespace norm::server {

struct DecodeLimits {
  /// Largest total of the output tensors of one request, without those that leave in rows: a
  /// response must fit a message.
  int64_t max_output_bytes = 0;
};

/// Makes the job of a request: problem, priority and borrowed inputs; flow, deadline, cancelled and
/// done are the caller's. Of the header of a request in rows: the problem of the whole, and the
/// inputs that do not travel in rows.
///
/// Order of checks: priority, op and its options, x, the other tensors one by one, rules between them,
/// limits. The first violation ends it. Allocates nothing in proportion to claimed dimensions.
///
/// Ownership: the job's inputs borrow from `message`, which must live until the job has completed.
/// Errors:    INVALID_ARGUMENT (see InvalidField); RESOURCE_EXHAUSTED when the outputs exceed
/// limits.max_output_bytes.
absl::StatusOr<std::unique_ptr<Job>> DecodeRequest(const norm::v1::NormalizeRequest& request,
                                                   const wire::ReceivedMessage& message,
                                                   const DecodeLimits& limits,
                                                   Transfer transfer = Transfer::kWhole);
absl::StatusOr<std::unique_ptr<Job>> DecodeRequest(
    const norm::v1::NormalizeBackwardRequest& request, const wire::ReceivedMessage& message,
    const DecodeLimits& limits, Transfer transfer = Transfer::kWhole);

/// Labels a request that was refused: op and dtype of x, when the header names known ones.
struct RequestKind {
  Op op;
  DType dtype;
};
std::optional<RequestKind> KindOf(const norm::v1::NormalizeRequest& request);
std::optional<RequestKind> KindOf(const norm::v1::NormalizeBackwardRequest& request);

}  // namespace norm::server
