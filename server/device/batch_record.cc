#include "server/device/batch_record.h"

namespace norm::server {

void RecordBatch(const BatchLayout& layout, const BatchTimes& times, int device_index, Batch& batch,
                 Metrics& metrics) {
  for (JobResult& result : batch.results) {
    result.timing.copy_in = times.copy_in;
    result.timing.kernel = times.kernel;
    result.timing.copy_out = times.copy_out;
  }
  metrics.RecordStage(Stage::kCopyIn, times.copy_in);
  metrics.RecordStage(Stage::kKernel, times.kernel);
  metrics.RecordStage(Stage::kCopyOut, times.copy_out);
  const NormProblem& first = layout.segments.front().problem;
  ExecutionRecord record;
  record.op = first.op;
  record.direction = first.direction;
  record.dtype = first.dtype;
  record.device_index = device_index;
  record.close_reason = BatchCloseReasonName(batch.reason);
  record.requests = static_cast<int64_t>(batch.jobs.size());
  record.rows = layout.rows();
  record.kernel_bytes = layout.problem_bytes();
  record.input_bytes = layout.input_bytes;
  record.output_bytes = layout.output_bytes;
  record.kernel_time = times.kernel;
  metrics.RecordExecution(record);
}

}  // namespace norm::server
