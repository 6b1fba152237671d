// From a finished job to the response message; tensors leave from the staging memory they were
// computed in.
#pragma once

#include "absl/time/time.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_writer.h"
#include "server/scheduler/job.h"

namespace norm::server {

/// Fills `response` with timing and output tensors and attaches their bytes to `writer`, without a
/// copy.
///
/// Ownership: the attached slices hold result.outputs[].owner until gRPC has sent them.
/// `total` is the time since the message was complete.
void FillResponse(const norm::v1::NormalizeRequest& request, const NormProblem& problem,
                  const JobResult& result, absl::Duration total, wire::MessageWriter* writer,
                  norm::v1::NormalizeResponse* response);
void FillResponse(const norm::v1::NormalizeBackwardRequest& request, const NormProblem& problem,
                  const JobResult& result, absl::Duration total, wire::MessageWriter* writer,
                  norm::v1::NormalizeBackwardResponse* response);

/// Bytes of all output tensors.
int64_t OutputBytes(const JobResult& result);

}  // namespace norm::server
