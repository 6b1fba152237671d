#include "client/normctl/doctor/driver_probe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/normctl/doctor/shared_library.h"

namespace norm::normctl {
namespace {

// Of CUdevice_attribute.
constexpr int kMultiprocessors = 16;
constexpr int kMemoryClockKhz = 36;
constexpr int kMemoryBusBits = 37;
constexpr int kComputeMajor = 75;
constexpr int kComputeMinor = 76;

constexpr size_t kHostCopyBytes = size_t{64} << 20;
constexpr size_t kDeviceCopyBytes = size_t{512} << 20;
constexpr int kCopies = 6;

/// The part of the driver's interface that is used: functions of libcuda.so.1 by name.
class Driver {
 public:
  explicit Driver(const std::string& name) : library_(name) {}

  const SharedLibrary& library() const { return library_; }

  /// Calls a function of the driver, unless one before has failed. True when it succeeded.
  template <typename... Arguments>
  bool Call(const char* name, Arguments... arguments) {
    if (error_.has_value()) return false;
    auto* const function = library_.Find<int(Arguments...)>(name);
    if (function == nullptr) {
      error_ = DriverError{-1, absl::StrCat(name, ": not in this driver")};
      return false;
    }
    const int code = function(arguments...);
    if (code != 0) error_ = DriverError{code, absl::StrCat(name, ": ", Describe(code))};
    return code == 0;
  }

  std::optional<DriverError> TakeError() { return std::exchange(error_, std::nullopt); }

 private:
  std::string Describe(int code) const {
    std::array<const char*, 2> texts = {nullptr, nullptr};
    const std::array<const char*, 2> functions = {"cuGetErrorName", "cuGetErrorString"};
    for (size_t i = 0; i < texts.size(); ++i) {
      auto* const function = library_.Find<int(int, const char**)>(functions[i]);
      if (function == nullptr || function(code, &texts[i]) != 0) texts[i] = nullptr;
    }
    if (texts[0] == nullptr) return absl::StrCat("error ", code);
    return absl::StrCat(texts[0], texts[1] == nullptr ? "" : ": ",
                        texts[1] == nullptr ? "" : texts[1]);
  }

  const SharedLibrary library_;
  std::optional<DriverError> error_;
};

/// Memory and a stream of one GPU, given back on destruction whatever failed.
class CopyBench {
 public:
  CopyBench(Driver& driver, int device) : driver_(driver), device_(device) {}
  ~CopyBench() {
    driver_.TakeError();
    for (const unsigned long long memory :
         {from_, to_}) {  // NOLINT(google-runtime-int): CUdeviceptr
      if (memory != 0) driver_.Call("cuMemFree_v2", memory);
    }
    if (host_ != nullptr) driver_.Call("cuMemFreeHost", host_);
    for (void* event : {begin_, end_}) {
      if (event != nullptr) driver_.Call("cuEventDestroy_v2", event);
    }
    if (stream_ != nullptr) driver_.Call("cuStreamDestroy_v2", stream_);
    if (context_ != nullptr) driver_.Call("cuDevicePrimaryCtxRelease_v2", device_);
    driver_.TakeError();
  }
  CopyBench(const CopyBench&) = delete;
  CopyBench& operator=(const CopyBench&) = delete;

  /// Absent where a call failed; the driver has its error.
  std::optional<CopyBandwidth> Run() {
    if (!driver_.Call("cuDevicePrimaryCtxRetain", &context_, device_) ||
        !driver_.Call("cuCtxSetCurrent", context_) ||
        !driver_.Call("cuStreamCreate", &stream_, 1U) ||
        !driver_.Call("cuEventCreate", &begin_, 0U) || !driver_.Call("cuEventCreate", &end_, 0U) ||
        !driver_.Call("cuMemAllocHost_v2", &host_, kHostCopyBytes) ||
        !driver_.Call("cuMemAlloc_v2", &from_, kDeviceCopyBytes) ||
        !driver_.Call("cuMemAlloc_v2", &to_, kDeviceCopyBytes)) {
      return std::nullopt;
    }
    CopyBandwidth best;
    for (int i = 0; i < kCopies; ++i) {
      const bool done =
          Time(kHostCopyBytes, &best.to_device,
               [&] {
                 return driver_.Call("cuMemcpyHtoDAsync_v2", to_, host_, kHostCopyBytes, stream_);
               }) &&
          Time(kHostCopyBytes, &best.from_device,
               [&] {
                 return driver_.Call("cuMemcpyDtoHAsync_v2", host_, to_, kHostCopyBytes, stream_);
               }) &&
          Time(2 * kDeviceCopyBytes, &best.on_device, [&] {
            return driver_.Call("cuMemcpyDtoDAsync_v2", to_, from_, kDeviceCopyBytes, stream_);
          });
      if (!done) return std::nullopt;
    }
    return best;
  }

 private:
  template <typename Copy>
  bool Time(size_t bytes, double* best, const Copy& copy) {
    float ms = 0;
    if (!driver_.Call("cuEventRecord", begin_, stream_) || !copy() ||
        !driver_.Call("cuEventRecord", end_, stream_) ||
        !driver_.Call("cuStreamSynchronize", stream_) ||
        !driver_.Call("cuEventElapsedTime", &ms, begin_, end_)) {
      return false;
    }
    *best = std::max(*best,
                     static_cast<double>(bytes) / std::max(static_cast<double>(ms) * 1e-3, 1e-9));
    return true;
  }

  Driver& driver_;
  const int device_;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  void* begin_ = nullptr;
  void* end_ = nullptr;
  void* host_ = nullptr;
  unsigned long long from_ = 0;  // NOLINT(google-runtime-int): CUdeviceptr
  unsigned long long to_ = 0;    // NOLINT(google-runtime-int): CUdeviceptr
};

int Attribute(Driver& driver, int attribute, int device) {
  int value = 0;
  if (!driver.Call("cuDeviceGetAttribute", &value, attribute, device)) driver.TakeError();
  return value;
}

GpuFacts LookAtGpu(Driver& driver, int ordinal, CopyTiming timing) {
  GpuFacts gpu;
  gpu.ordinal = ordinal;
  int device = 0;
  if (!driver.Call("cuDeviceGet", &device, ordinal)) {
    gpu.copy_error = driver.TakeError();
    return gpu;
  }
  std::array<char, 128> name = {};
  if (driver.Call("cuDeviceGetName", name.data(), static_cast<int>(name.size()), device))
    gpu.name = name.data();
  if (driver.Call("cuDeviceGetPCIBusId", name.data(), static_cast<int>(name.size()), device))
    gpu.pci_bus_id = name.data();
  size_t bytes = 0;
  if (driver.Call("cuDeviceTotalMem_v2", &bytes, device))
    gpu.memory_bytes = static_cast<int64_t>(bytes);
  driver.TakeError();
  gpu.compute_capability =
      10 * Attribute(driver, kComputeMajor, device) + Attribute(driver, kComputeMinor, device);
  gpu.multiprocessors = Attribute(driver, kMultiprocessors, device);
  // Two transfers a clock, as every memory of these cards makes.
  gpu.memory_bandwidth = 2e3 * Attribute(driver, kMemoryClockKhz, device) *
                         Attribute(driver, kMemoryBusBits, device) / 8.0;
  if (timing == CopyTiming::kSkipped) return gpu;
  CopyBench bench(driver, device);
  gpu.copies = bench.Run();
  if (!gpu.copies.has_value()) gpu.copy_error = driver.TakeError();
  return gpu;
}

}  // namespace

DriverFacts LookAtDriver(const std::string& library, CopyTiming timing) {
  DriverFacts facts;
  Driver driver(library);
  if (!driver.library().loaded()) {
    facts.library_error = driver.library().error();
    return facts;
  }
  driver.Call("cuDriverGetVersion", &facts.cuda_version);
  int count = 0;
  if (!driver.Call("cuInit", 0U) || !driver.Call("cuDeviceGetCount", &count)) {
    facts.error = driver.TakeError();
    return facts;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal)
    facts.gpus.push_back(LookAtGpu(driver, ordinal, timing));
  return facts;
}

int LookAtRuntime(const std::string& library) {
  const SharedLibrary runtime(library);
  auto* const get_version = runtime.Find<int(int*)>("cudaRuntimeGetVersion");
  int version = 0;
  return get_version != nullptr && get_version(&version) == 0 ? version : 0;
}

}  // namespace norm::normctl
