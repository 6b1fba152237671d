#include "bench/device_session.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <utility>

#include "norm/cuda/cuda_status.h"

namespace norm::bench {
namespace {

Result<int> Attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  NORM_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

}  // namespace

Result<DeviceSession> DeviceSession::Open(const MeasureOptions& options) {
  const Result<int> count = cuda::DeviceCount();
  NORM_RETURN_IF_ERROR(count.status());
  if (options.device < 0 || options.device >= count.value()) {
    return Status(StatusCode::kInvalidArgument, "device " + std::to_string(options.device) +
                                                    " of " + std::to_string(count.value()) +
                                                    " CUDA devices");
  }
  NORM_RETURN_IF_ERROR(cuda::CheckDeviceImage(options.device));
  Result<cuda::DeviceInfo> info = cuda::QueryDevice(options.device);
  NORM_RETURN_IF_ERROR(info.status());
  Result<ColdTimer> timer = ColdTimer::Create(options.device, options.samples);
  NORM_RETURN_IF_ERROR(timer.status());
  DeviceSession session = {
      std::move(info).value(), std::move(timer).value(), TensorArena(options.device), {}, 0.0, 0.0};
  NORM_RETURN_IF_CUDA_ERROR(cudaSetDevice(options.device));

  NORM_RETURN_IF_ERROR(session.timer.WarmUp());
  const Result<double> copy = session.timer.CopyGbs();
  NORM_RETURN_IF_ERROR(copy.status());
  const Result<double> launch = session.timer.LaunchUs();
  NORM_RETURN_IF_ERROR(launch.status());
  const Result<int> clock_khz = Attribute(cudaDevAttrClockRate, options.device);
  const Result<int> memory_khz = Attribute(cudaDevAttrMemoryClockRate, options.device);
  const Result<int> bus_bits = Attribute(cudaDevAttrGlobalMemoryBusWidth, options.device);
  if (clock_khz.ok()) session.clock_ghz = clock_khz.value() * 1e-6;
  if (memory_khz.ok() && bus_bits.ok()) {
    session.peak_gbs = 2.0 * memory_khz.value() * 1e3 * bus_bits.value() / 8 * 1e-9;
  }
  const cuda::DeviceInfo& device = session.info;
  session.ceilings.copy_gbs = copy.value();
  session.ceilings.launch_us = launch.value();
  session.ceilings.f32_tflops =
      F32PeakTflops(device.sm_count, F32LanesPerSm(device.compute_major, device.compute_minor),
                    session.clock_ghz);
  std::printf(
      "%s (sm_%d%d, %d SMs, L2 %lld MiB): copy %.0f GB/s, memory peak %.0f GB/s, empty kernel %.2f "
      "us; median of %d, cold cache\n",
      device.name.c_str(), device.compute_major, device.compute_minor, device.sm_count,
      static_cast<long long>(device.l2_bytes >> 20), copy.value(), session.peak_gbs, launch.value(),
      options.samples);
  std::fflush(stdout);
  return session;
}

Report DeviceSession::NewReport(const MeasureOptions& options) const {
  Report report;
  report.device = info.name;
  report.date = Today();
  report.commit = options.commit;
  report.source_hash = options.source_hash;
  report.copy_gbs = ceilings.copy_gbs;
  return report;
}

}  // namespace norm::bench
