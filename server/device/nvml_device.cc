#include "server/device/nvml_device.h"

#include <dlfcn.h>

namespace norm::server {
namespace {

// NVML's ABI, which is the same in every driver: https://docs.nvidia.com/deploy/nvml-api/
constexpr int kNvmlSuccess = 0;

constexpr int kTemperatureOfGpu = 0;

struct NvmlUtilization {
  unsigned int gpu_percent;
  unsigned int memory_percent;
};

struct NvmlMemory {
  unsigned long long total_bytes;
  unsigned long long free_bytes;
  unsigned long long used_bytes;
};

}  // namespace

struct NvmlDevice::Library {
  Library() : handle(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) return;
    complete = Load(init, "nvmlInit_v2") && Load(shutdown, "nvmlShutdown") &&
               Load(find, "nvmlDeviceGetHandleByPciBusId_v2") && Load(uuid, "nvmlDeviceGetUUID") &&
               Load(utilization, "nvmlDeviceGetUtilizationRates") &&
               Load(memory, "nvmlDeviceGetMemoryInfo") && Load(power, "nvmlDeviceGetPowerUsage") &&
               Load(power_limit, "nvmlDeviceGetEnforcedPowerLimit") && init() == kNvmlSuccess;
    (void)Load(temperature, "nvmlDeviceGetTemperature");  // until CUDA 14
  }
  ~Library() {
    if (complete) shutdown();
    if (handle != nullptr) dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename Function>
  bool Load(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle, name));
    return function != nullptr;
  }

  void* handle;
  bool complete = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*find)(const char* pci_bus_id, void** device) = nullptr;
  int (*uuid)(void* device, char* text, unsigned int size) = nullptr;
  int (*utilization)(void* device, NvmlUtilization* rates) = nullptr;
  int (*memory)(void* device, NvmlMemory* memory) = nullptr;
  int (*power)(void* device, unsigned int* milliwatts) = nullptr;
  int (*power_limit)(void* device, unsigned int* milliwatts) = nullptr;
  int (*temperature)(void* device, int sensor, unsigned int* celsius) = nullptr;
};

NvmlDevice::NvmlDevice(const std::string& pci_bus_id)
    : library_(std::make_shared<const Library>()) {
  if (!library_->complete) return;
  void* device = nullptr;
  char uuid[96] = {};
  if (library_->find(pci_bus_id.c_str(), &device) != kNvmlSuccess ||
      library_->uuid(device, uuid, sizeof(uuid)) != kNvmlSuccess) {
    return;
  }
  handle_ = device;
  uuid_ = uuid;
}

GpuReading NvmlDevice::Read() const {
  GpuReading reading;
  NvmlUtilization rates{};
  if (library_->utilization(handle_, &rates) == kNvmlSuccess) {
    reading.utilization = rates.gpu_percent / 100.0;
  }
  NvmlMemory memory{};
  if (library_->memory(handle_, &memory) == kNvmlSuccess) {
    reading.memory_used_bytes = static_cast<double>(memory.used_bytes);
    reading.memory_total_bytes = static_cast<double>(memory.total_bytes);
  }
  unsigned int milliwatts = 0;
  if (library_->power(handle_, &milliwatts) == kNvmlSuccess) {
    reading.power_watts = milliwatts / 1000.0;
  }
  if (library_->power_limit(handle_, &milliwatts) == kNvmlSuccess) {
    reading.power_limit_watts = milliwatts / 1000.0;
  }
  unsigned int celsius = 0;
  if (library_->temperature != nullptr &&
      library_->temperature(handle_, kTemperatureOfGpu, &celsius) == kNvmlSuccess) {
    reading.temperature_celsius = celsius;
  }
  return reading;
}

}  // namespace norm::server
