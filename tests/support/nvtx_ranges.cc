#include "tests/support/nvtx_ranges.h"

#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdlib>
#include <mutex>

namespace norm::test {
namespace {

std::mutex mutex;
std::map<std::string, int64_t>& Counts() {
  static auto& counts = *new std::map<std::string, int64_t>();
  return counts;
}
int64_t open_ranges = 0;

int NVTX_API OnPush(const char* name) {
  const std::lock_guard lock(mutex);
  ++Counts()[name];
  ++open_ranges;
  return 0;
}

int NVTX_API OnPop() {
  const std::lock_guard lock(mutex);
  --open_ranges;
  return 0;
}

template <typename Function>
void Set(NvtxFunctionTable table, uint32_t callback, Function function) {
  *table[callback] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

void CountNvtxRanges() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&CountNvtxRanges), &self) == 0) std::abort();
  setenv("NVTX_INJECTION64_PATH", self.dli_fname, /*overwrite=*/1);
}

std::map<std::string, int64_t> NvtxRanges() {
  const std::lock_guard lock(mutex);
  return Counts();
}

int64_t OpenNvtxRanges() {
  const std::lock_guard lock(mutex);
  return open_ranges;
}

}  // namespace norm::test

/// What NVTX calls in the library that NVTX_INJECTION64_PATH names; 1 for success.
extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE_RangePop) {
    return 0;
  }
  norm::test::Set(table, NVTX_CBID_CORE_RangePushA, &norm::test::OnPush);
  norm::test::Set(table, NVTX_CBID_CORE_RangePop, &norm::test::OnPop);
  return 1;
}
