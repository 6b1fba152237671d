// A libcuda.so.1, a libnvidia-ml.so.1 and a libcudart in one, whose behaviour the environment sets:
// FAKE_CUDA="init=100 driver=12040 gpus=2 cc=75 copy=700 ms=2 slow=0x40 ecc=3 width=8". Memory is host memory.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

long Setting(const char* name, long otherwise) {
  const char* const settings = std::getenv("FAKE_CUDA");
  const std::string text = std::string(" ") + (settings == nullptr ? "" : settings);
  const size_t at = text.find(std::string(" ") + name + "=");
  if (at == std::string::npos) return otherwise;
  return std::strtol(text.c_str() + at + std::strlen(name) + 2, nullptr, 0);
}

int Copy() { return static_cast<int>(Setting("copy", 0)); }
int opened = 0;  // contexts, streams, events and memory that are not given back

void* Handle() {
  ++opened;
  return &opened;
}
int Close() {
  --opened;
  return 0;
}

}  // namespace

extern "C" {

int fake_cuda_opened() { return opened; }

int cuDriverGetVersion(int* version) {
  *version = static_cast<int>(Setting("driver", 13000));
  return 0;
}
int cuInit(unsigned) { return static_cast<int>(Setting("init", 0)); }
int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(Setting("gpus", 1));
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, static_cast<size_t>(size), "Fake GPU");
  return 0;
}
int cuDeviceGetPCIBusId(char* id, int size, int device) {
  std::snprintf(id, static_cast<size_t>(size), "0000:%02x:00.0", 0x3b + device);
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{16} << 30;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const long capability = Setting("cc", 90);
  switch (attribute) {
    case 16:
      *value = 132;
      return 0;
    case 36:
      *value = 1'000'000;  // kHz
      return 0;
    case 37:
      *value = 4096;  // bits: 1024 GB/s
      return 0;
    case 75:
      *value = static_cast<int>(capability / 10);
      return 0;
    case 76:
      *value = static_cast<int>(capability % 10);
      return 0;
    default:
      return 1;
  }
}
int cuGetErrorName(int code, const char** name) {
  *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_FAKE";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "as asked for";
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = Handle();
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return Close(); }
int cuCtxSetCurrent(void*) { return 0; }
int cuStreamCreate(void** stream, unsigned) {
  *stream = Handle();
  return 0;
}
int cuStreamDestroy_v2(void*) { return Close(); }
int cuStreamSynchronize(void*) { return 0; }
int cuEventCreate(void** event, unsigned) {
  *event = Handle();
  return 0;
}
int cuEventDestroy_v2(void*) { return Close(); }
int cuEventRecord(void*, void*) { return 0; }
int cuEventElapsedTime(float* ms, void*, void*) {
  *ms = static_cast<float>(Setting("ms", 2));
  return 0;
}
int cuMemAllocHost_v2(void** memory, size_t) {
  *memory = Handle();
  return 0;
}
int cuMemFreeHost(void*) { return Close(); }
int cuMemAlloc_v2(unsigned long long* memory, size_t) {
  if (Copy() == 2) return 2;
  Handle();
  *memory = 1;
  return 0;
}
int cuMemFree_v2(unsigned long long) { return Close(); }
int cuMemcpyHtoDAsync_v2(unsigned long long, const void*, size_t, void*) { return Copy(); }
int cuMemcpyDtoHAsync_v2(void*, unsigned long long, size_t, void*) { return Copy(); }
int cuMemcpyDtoDAsync_v2(unsigned long long, unsigned long long, size_t, void*) { return Copy(); }

int nvmlInit_v2() { return static_cast<int>(Setting("nvml", 0)); }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  std::snprintf(version, size, "580.1");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(Setting("all_gpus", 1));
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  *device = &opened;
  return std::strcmp(id, "0000:3b:00.0") == 0 ? 0 : 1;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 5;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* width) {
  *width = static_cast<unsigned>(Setting("width", 16));
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) {
  *width = 16;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = static_cast<unsigned long long>(Setting("slow", 0));
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void*, int, int, unsigned long long* errors) {
  *errors = static_cast<unsigned long long>(Setting("ecc", 0));
  return 0;
}

int cudaRuntimeGetVersion(int* version) {
  *version = static_cast<int>(Setting("runtime", 13000));
  return 0;
}
}
