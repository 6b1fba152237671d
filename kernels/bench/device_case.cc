#include "bench/device_case.h"

#include "bench/timing_device.h"
#include "dispatch/launch.h"
#include "norm/cuda/copy.h"

namespace norm::bench {
namespace {

/// Every bit set: NaN in all element types.
constexpr std::byte kPoison{0xFF};
constexpr int64_t kFillBlocks = 1024;

norm_device::Element ElementOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return norm_device::Element::kF32;
    case DType::kF16:
      return norm_device::Element::kF16;
    case DType::kBF16:
      return norm_device::Element::kBF16;
    case DType::kF64:
      return norm_device::Element::kF64;
  }
  return norm_device::Element::kF32;
}

}  // namespace

Result<std::unique_ptr<DeviceCase>> DeviceCase::Prepare(const BenchCase& bench_case,
                                                        TensorArena& arena,
                                                        const cuda::Stream& stream,
                                                        WrittenStatistics statistics) {
  arena.BeginCase();
  return bench_case.op == Op::kBatchNorm ? PrepareChannelCase(bench_case, arena, stream, statistics)
                                         : PrepareRowCase(bench_case, arena, stream, statistics);
}

Result<norm_device::AnyTensor> DeviceCase::Take(const char* name, DType dtype, int64_t count,
                                                Draw draw) {
  const Result<void*> data = arena_.Take(name, count * static_cast<int64_t>(DTypeSize(dtype)));
  NORM_RETURN_IF_ERROR(data.status());
  const norm_device::AnyTensor tensor = {data.value(), ElementOf(dtype)};
  if (draw.seed != 0) {
    internal::LaunchConfig config;
    config.blocks_x = kFillBlocks;
    config.threads_x = 256;
    const norm_device::FillParams params = {tensor, count, draw.seed, draw.scale, draw.offset};
    NORM_RETURN_IF_ERROR(
        internal::Launch(norm_device::FillKernel(), config, params, stream_.view().handle()));
  }
  return tensor;
}

Result<norm_device::AnyTensor> DeviceCase::TakeOutput(const char* name, DType dtype,
                                                      int64_t count) {
  Result<norm_device::AnyTensor> tensor = Take(name, dtype, count, {});
  if (tensor.ok()) {
    outputs_.push_back({tensor.value().data, static_cast<size_t>(count) * DTypeSize(dtype)});
  }
  return tensor;
}

Result<norm_device::AnyTensor> DeviceCase::TakeQuantizedOutput(const char* name,
                                                               norm_device::Element element,
                                                               int64_t count) {
  const Result<void*> data = arena_.Take(name, count);
  NORM_RETURN_IF_ERROR(data.status());
  outputs_.push_back({data.value(), static_cast<size_t>(count)});
  return norm_device::AnyTensor{data.value(), element};
}

Result<double*> DeviceCase::TakeZeroed(const char* name, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(double));
  const Result<void*> data = arena_.Take(name, bytes);
  NORM_RETURN_IF_ERROR(data.status());
  NORM_RETURN_IF_ERROR(
      cuda::FillAsync(data.value(), std::byte{0}, static_cast<size_t>(bytes), stream_.view()));
  return static_cast<double*>(data.value());
}

Status DeviceCase::PoisonOutputs() const {
  for (const Output& output : outputs_) {
    NORM_RETURN_IF_ERROR(cuda::FillAsync(output.data, kPoison, output.bytes, stream_.view()));
  }
  if (workspace_.size_bytes > 0) {
    NORM_RETURN_IF_ERROR(
        cuda::FillAsync(workspace_.data, kPoison, workspace_.size_bytes, stream_.view()));
  }
  return Status();
}

}  // namespace norm::bench
