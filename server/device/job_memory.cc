#include "server/device/job_memory.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/scheduler/scheduler.h"

namespace norm::server {
namespace {

// Until the request that was let in first has gone on: 64 MiB at 1 GB/s.
constexpr absl::Duration kRetryAfter = absl::Milliseconds(64);

}  // namespace

absl::StatusOr<JobMemory> JobMemoryShare::Lease(const JobMemoryBytes& bytes) {
  JobMemory memory;
  struct Part {
    int64_t bytes;
    std::shared_ptr<std::byte>& lease;
  };
  const Part parts[] = {{bytes.inputs, memory.inputs},
                        {bytes.outputs, memory.outputs},
                        {bytes.workspace, memory.workspace}};
  const size_t count = bytes.workspace > 0 ? 3 : 2;
  int64_t reserved = 0;
  for (size_t i = 0; i < count; ++i) reserved += SlabBytes(parts[i].bytes);
  if (absl::Status status = Reserve(reserved); !status.ok()) return status;
  const absl::Cleanup unreserve = [&] { brought_bytes_->fetch_sub(reserved); };
  for (size_t i = 0; i < count; ++i) {
    const Part& part = parts[i];
    int64_t slab_bytes = 0;
    auto slab = pool_.Lease(part.bytes, LeaseMode::kAllocates, &slab_bytes);
    if (!slab.ok()) return slab.status();
    // From here on counted by the lease, as what it is: a slab that lay free may be larger.
    reserved -= SlabBytes(part.bytes);
    brought_bytes_->fetch_add(slab_bytes - SlabBytes(part.bytes));
    std::byte* const data = slab->get();
    part.lease = std::shared_ptr<std::byte>(
        data, [slab = *std::move(slab), total = brought_bytes_, slab_bytes](std::byte*) mutable {
          slab.reset();
          total->fetch_sub(slab_bytes);
        });
  }
  return memory;
}

absl::Status JobMemoryShare::Reserve(int64_t bytes) {
  const int64_t limit = pool_.budget_bytes() / 2;
  int64_t brought = brought_bytes_->load();
  do {
    if (brought > 0 && bytes > limit - brought) {
      return WithRetryAfter(absl::UnavailableError(absl::StrCat(
                                "staging memory for whole requests has ", brought,
                                " bytes in use and this one takes ", bytes,
                                ", together they may have ", limit, ", half of the pool")),
                            kRetryAfter);
    }
  } while (!brought_bytes_->compare_exchange_weak(brought, brought + bytes));
  return absl::OkStatus();
}

}  // namespace norm::server
