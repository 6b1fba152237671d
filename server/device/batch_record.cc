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
  ExecutionRecord record;
  record.op = layout.problem.op;
  record.direction = layout.problem.direction;
  record.dtype = layout.problem.dtype;
  record.device_index = device_index;
  record.close_reason = BatchCloseReasonName(batch.reason);
  record.requests = static_cast<int64_t>(batch.jobs.size());
  record.rows = layout.problem.rows;
  record.kernel_bytes = ProblemBytes(layout.problem);
  record.kernel_time = times.kernel;
  metrics.RecordExecution(record);
}

}  // namespace norm::server
