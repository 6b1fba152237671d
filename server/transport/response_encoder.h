// From a finished job to the response message; tensors leave from the staging memory they were
// computed in.
#pragma once

#include "absl/time/time.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_writer.h"
#include "server/scheduler/job.h"
#include "server/transport/tensor_check.h"

namespace norm::server {

/// Fills `response` with timing and output tensors and attaches their bytes to `writer`, without a
/// copy. For the final response of a request in rows: without the tensors that leave in rows.
///
/// Ownership: the attached slices hold result.outputs[].owner until gRPC has sent them.
/// `total` is the time since the message was complete.
void FillResponse(const norm::v1::NormalizeRequest& request, const NormProblem& problem,
                  const JobResult& result, absl::Duration total, wire::MessageWriter* writer,
                  norm::v1::NormalizeResponse* response, Transfer transfer = Transfer::kWhole);
void FillResponse(const norm::v1::NormalizeBackwardRequest& request, const NormProblem& problem,
                  const JobResult& result, absl::Duration total, wire::MessageWriter* writer,
                  norm::v1::NormalizeBackwardResponse* response,
                  Transfer transfer = Transfer::kWhole);

/// Fills `rows` with the outputs that leave in rows, and attaches their bytes: `count` rows of each
/// from the one that is `skip` rows into `result`.
void FillRows(const NormProblem& problem, const JobResult& result, int64_t skip, int64_t count,
              wire::MessageWriter* writer, norm::v1::OutputRows* rows);

/// Whether the thread that finished a job sends its response: one that serves queues anyway does, and
/// a thread of the device a small response that comes alone, which would wait longer for another
/// thread to wake than sending takes.
bool SentAtOnce(const JobResult& result);

/// Bytes of all output tensors.
int64_t OutputBytes(const JobResult& result);

}  // namespace norm::server
