#include "server/device/job_memory.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace norm::server {

absl::StatusOr<JobMemory> LeaseJobMemory(BufferPool& pool, const JobMemoryBytes& bytes) {
  const int64_t wanted = bytes.inputs + bytes.outputs + bytes.workspace;
  const int64_t limit = pool.budget_bytes() / 2;
  const int64_t used = pool.usage().used_bytes;
  if (used > 0 && wanted > limit - used) {
    return absl::UnavailableError(absl::StrCat("staging memory has ", used,
                                               " bytes in use and this request takes ", wanted,
                                               ", half of it is ", limit));
  }
  JobMemory memory;
  const std::pair<int64_t, std::shared_ptr<std::byte>*> parts[] = {
      {bytes.inputs, &memory.inputs}, {bytes.outputs, &memory.outputs}};
  for (const auto& [size, part] : parts) {
    auto lease = pool.Lease(size);
    if (!lease.ok()) return lease.status();
    *part = *std::move(lease);
  }
  if (bytes.workspace == 0) return memory;
  auto lease = pool.Lease(bytes.workspace);
  if (!lease.ok()) return lease.status();
  memory.workspace = *std::move(lease);
  return memory;
}

}  // namespace norm::server
