#include <array>
#include <optional>
#include <utility>

#include "client/normctl/doctor/driver_probe.h"
#include "client/normctl/doctor/shared_library.h"

namespace norm::normctl {
namespace {

// Of nvmlClocksThrottleReasons.
constexpr std::pair<uint64_t, const char*> kSlowReasons[] = {{0x04, "software power cap"},
                                                             {0x08, "hardware slowdown"},
                                                             {0x20, "software thermal slowdown"},
                                                             {0x40, "hardware thermal slowdown"},
                                                             {0x80, "hardware power brake"}};

/// The part of NVML's interface that is used; a call that fails is as one that says nothing.
class Management {
 public:
  explicit Management(const std::string& name) : library_(name) {}

  template <typename... Arguments>
  bool Call(const char* name, Arguments... arguments) const {
    auto* const function = library_.Find<int(Arguments...)>(name);
    return function != nullptr && function(arguments...) == 0;
  }

 private:
  const SharedLibrary library_;
};

std::optional<PcieLink> LookAtLink(const Management& nvml, void* device) {
  unsigned generation = 0;
  unsigned width = 0;
  unsigned max_width = 0;
  if (!nvml.Call("nvmlDeviceGetCurrPcieLinkGeneration", device, &generation) ||
      !nvml.Call("nvmlDeviceGetCurrPcieLinkWidth", device, &width) ||
      !nvml.Call("nvmlDeviceGetMaxPcieLinkWidth", device, &max_width)) {
    return std::nullopt;
  }
  return PcieLink{static_cast<int>(generation), static_cast<int>(width),
                  static_cast<int>(max_width)};
}

void LookAtGpu(const Management& nvml, GpuFacts* gpu) {
  void* device = nullptr;
  if (!nvml.Call("nvmlDeviceGetHandleByPciBusId_v2", gpu->pci_bus_id.c_str(), &device)) return;
  gpu->link = LookAtLink(nvml, device);
  unsigned long long value = 0;  // NOLINT(google-runtime-int): NVML's type
  if (nvml.Call("nvmlDeviceGetCurrentClocksThrottleReasons", device, &value)) {
    for (const auto& [bit, name] : kSlowReasons) {
      if ((value & bit) != 0) gpu->slowed_by.emplace_back(name);
    }
  }
  // Uncorrected, since the last reboot.
  if (nvml.Call("nvmlDeviceGetTotalEccErrors", device, 1, 0, &value))
    gpu->uncorrected_memory_errors = static_cast<int64_t>(value);
}

}  // namespace

ManagementFacts LookAtManagement(const std::string& library, DriverFacts* driver) {
  ManagementFacts facts;
  const Management nvml(library);
  if (!nvml.Call("nvmlInit_v2")) return facts;
  std::array<char, 96> version = {};
  if (nvml.Call("nvmlSystemGetDriverVersion", version.data(),
                static_cast<unsigned>(version.size())))
    facts.driver_version = version.data();
  unsigned count = 0;
  if (nvml.Call("nvmlDeviceGetCount_v2", &count)) facts.gpus = static_cast<int>(count);
  for (GpuFacts& gpu : driver->gpus) LookAtGpu(nvml, &gpu);
  nvml.Call("nvmlShutdown");
  return facts;
}

}  // namespace norm::normctl
