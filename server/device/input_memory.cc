#include "server/device/input_memory.h"

#include "absl/strings/str_cat.h"

namespace norm::server {

absl::StatusOr<InputMemory> LeaseInputFrom(BufferPool& pool, int64_t bytes) {
  const int64_t limit = pool.budget_bytes() / 2;
  const int64_t used = pool.usage().used_bytes;
  if (used > 0 && bytes > limit - used) {
    return absl::UnavailableError(absl::StrCat("staging memory has ", used,
                                               " bytes in use and this "
                                               "request takes ",
                                               bytes, ", half of it is ", limit));
  }
  auto lease = pool.Lease(bytes);
  if (!lease.ok()) return lease.status();
  return InputMemory{*std::move(lease)};
}

}  // namespace norm::server
