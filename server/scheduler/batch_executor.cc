#include "server/scheduler/batch_executor.h"

namespace norm::server {

const char* BatchCloseReasonName(BatchCloseReason reason) {
  switch (reason) {
    case BatchCloseReason::kSlotFree:
      return "slot_free";
    case BatchCloseReason::kRows:
      return "rows";
    case BatchCloseReason::kBytes:
      return "bytes";
    case BatchCloseReason::kSegments:
      return "segments";
    case BatchCloseReason::kSingle:
      return "single";
    case BatchCloseReason::kDelay:
      return "delay";
  }
  return "unknown";
}

std::vector<std::string> BatchCloseReasonNames() {
  std::vector<std::string> names;
  for (int i = 0; i < kBatchCloseReasonCount; ++i) {
    names.emplace_back(BatchCloseReasonName(static_cast<BatchCloseReason>(i)));
  }
  return names;
}

}  // namespace norm::server
