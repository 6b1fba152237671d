// What an executor reports about a batch it ran.
#pragma once

#include "absl/time/time.h"
#include "server/device/batch_layout.h"
#include "server/observability/metrics.h"

namespace norm::server {

/// Where the time of one batch went. Zero for stages a device does not have.
struct BatchTimes {
  absl::Duration copy_in;
  absl::Duration kernel;
  absl::Duration copy_out;
};

/// Writes the times to every result of the batch and to the metrics, with the launch itself.
/// Call after FillResults.
void RecordBatch(const BatchLayout& layout, const BatchTimes& times, int device_index, Batch& batch,
                 Metrics& metrics);

}  // namespace norm::server
