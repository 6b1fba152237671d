#include "batch_norm/batch_norm_rows_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "dispatch/dtype_dispatch.h"
#include "dispatch/launch.h"
#include "dispatch/workspace_layout.h"
#include "norm/cuda/cuda_status.h"

namespace norm::internal {
namespace {

using norm_device::RowsExchange;
using norm_device::RowsGrid;
using norm_device::RowsSlot;
using norm_device::RowsTensorMap;

constexpr int kCopyBytes = 16;  // what bulk copies ask of addresses and row lengths

bool AllAligned(std::initializer_list<const void*> tensors, size_t bytes) {
  return std::all_of(tensors.begin(), tensors.end(), [bytes](const void* tensor) {
    return reinterpret_cast<uintptr_t>(tensor) % bytes == 0;
  });
}

RowsExchange LayOutExchange(const RowsPlan& plan, WorkspaceLayout& layout) {
  RowsExchange exchange = {};
  for (int k = 0; k < 2; ++k) {
    exchange.partials[k] =
        layout.Take<RowsSlot>(static_cast<int64_t>(plan.grid.channels) * plan.grid.set_blocks);
    exchange.totals[k] = layout.Take<RowsSlot>(plan.grid.channels);
  }
  return exchange;
}

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);

Status FindEncode(EncodeFunction& encode) {
  constexpr unsigned kSince = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  NORM_RETURN_IF_CUDA_ERROR(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             kSince, cudaEnableDefault, &found));
  if (function == nullptr || found != cudaDriverEntryPointSuccess) {
    return Status(StatusCode::kUnsupported, "the driver has no cuTensorMapEncodeTiled");
  }
  encode = reinterpret_cast<EncodeFunction>(function);
  return Status();
}

/// Describes [rows, channels] in boxes of a chunk's rows and a strip's channels.
Status DescribeTensor(const RowsGrid& grid, DType dtype, const void* tensor, RowsTensorMap& out) {
  EncodeFunction encode = nullptr;
  NORM_RETURN_IF_ERROR(FindEncode(encode));
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  if (dtype == DType::kF16) type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  if (dtype == DType::kBF16) type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(grid.channels),
                               static_cast<cuuint64_t>(grid.rows)};
  const cuuint64_t row_bytes[1] = {static_cast<cuuint64_t>(grid.channels) * DTypeSize(dtype)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(grid.strip_channels),
                             static_cast<cuuint32_t>(grid.chunk_rows)};
  const cuuint32_t every[2] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, type, 2, const_cast<void*>(tensor), sizes, row_bytes, box, every,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Status(StatusCode::kCuda, "cuTensorMapEncodeTiled refused the tensor");
  }
  static_assert(sizeof(map) == sizeof(out.bytes));
  std::memcpy(out.bytes, &map, sizeof(map));
  return Status();
}

/// The three dtypes that have these kernels.
template <typename Visitor>
auto VisitNarrow(DType dtype, Visitor&& visitor) {
  if (dtype == DType::kF16) return visitor(norm_device::F16{});
  if (dtype == DType::kBF16) return visitor(norm_device::BF16{});
  return visitor(norm_device::F32{});
}

size_t RowsWorkspaceBytes(const RowsPlan& plan) {
  WorkspaceLayout layout(nullptr);
  LayOutExchange(plan, layout);
  return layout.size_bytes();
}

Status LaunchRowsForward(const RowsPlan& plan, const BatchNormForwardArgs& args, void* scratch,
                         StreamHandle stream) {
  WorkspaceLayout layout(scratch);
  norm_device::RowsForwardParams params = {};
  params.x = args.x;
  params.y = args.y;
  params.weight = args.weight;
  params.bias = args.bias;
  params.running_mean = static_cast<const float*>(args.running_mean);
  params.running_var = static_cast<const float*>(args.running_var);
  params.new_running_mean = static_cast<float*>(args.new_running_mean);
  params.new_running_var = static_cast<float*>(args.new_running_var);
  params.mean = static_cast<float*>(args.mean);
  params.rstd = static_cast<float*>(args.rstd);
  params.grid = plan.grid;
  params.exchange = LayOutExchange(plan, layout);
  params.eps = args.eps;
  params.momentum = args.momentum;
  const size_t element_bytes = DTypeSize(args.dtype);
  params.wide = AllAligned({args.x, args.y}, element_bytes * norm_device::kRowsGranule);
  params.f32_weights = args.weight_dtype == DType::kF32;
  const bool bulk = AllAligned({args.x, args.y}, kCopyBytes) &&
                    static_cast<size_t>(args.shape.channels) * element_bytes % kCopyBytes == 0;
  if (bulk) {
    NORM_RETURN_IF_ERROR(DescribeTensor(plan.grid, args.dtype, args.x, params.x_map));
  }
  const void* kernel = VisitNarrow(args.dtype, [bulk](auto element) {
    return norm_device::RowsForwardKernel<decltype(element)>(bulk);
  });
  return Launch(kernel, plan.launch, params, stream);
}

Status LaunchRowsBackward(const RowsPlan& plan, const BatchNormBackwardArgs& args, void* scratch,
                          StreamHandle stream) {
  WorkspaceLayout layout(scratch);
  norm_device::RowsBackwardParams params = {};
  params.dy = args.dy;
  params.x = args.x;
  params.dx = args.dx;
  params.weight = args.weight;
  params.given_rstd = static_cast<const float*>(args.rstd);
  params.dweight = args.dweight;
  params.dbias = args.dbias;
  params.grid = plan.grid;
  params.exchange = LayOutExchange(plan, layout);
  params.eps = args.eps;
  const size_t element_bytes = DTypeSize(args.dtype);
  params.wide = AllAligned({args.dy, args.x, args.dx}, element_bytes * norm_device::kRowsGranule);
  params.f32_weights = args.weight_dtype == DType::kF32;
  const bool bulk = AllAligned({args.dy, args.x, args.dx}, kCopyBytes) &&
                    static_cast<size_t>(args.shape.channels) * element_bytes % kCopyBytes == 0;
  if (bulk) {
    NORM_RETURN_IF_ERROR(DescribeTensor(plan.grid, args.dtype, args.dy, params.dy_map));
    NORM_RETURN_IF_ERROR(DescribeTensor(plan.grid, args.dtype, args.x, params.x_map));
  }
  const bool recompute = args.rstd == nullptr;
  const void* kernel = VisitNarrow(args.dtype, [bulk, recompute](auto element) {
    return norm_device::RowsBackwardKernel<decltype(element)>(bulk, recompute);
  });
  return Launch(kernel, plan.launch, params, stream);
}

std::optional<RowsPlan> PlanTraining(const BatchNormForwardArgs& args, const DeviceTraits& device) {
  if (args.mode != BatchNormMode::kTraining) return std::nullopt;
  return PlanRowsForward(args.shape, args.dtype, device);
}

std::optional<RowsPlan> PlanTraining(const BatchNormBackwardArgs& args,
                                     const DeviceTraits& device) {
  if (args.mode != BatchNormMode::kTraining) return std::nullopt;
  return PlanRowsBackward(args.shape, args.dtype, device);
}

template <typename Args>
std::optional<size_t> BytesOf(const Args& args, const DeviceTraits& device) {
  const std::optional<RowsPlan> plan = PlanTraining(args, device);
  if (!plan.has_value()) return std::nullopt;
  return RowsWorkspaceBytes(*plan);
}

}  // namespace

std::optional<size_t> RowsBytes(const BatchNormForwardArgs& args, const DeviceTraits& device) {
  return BytesOf(args, device);
}

std::optional<size_t> RowsBytes(const BatchNormBackwardArgs& args, const DeviceTraits& device) {
  return BytesOf(args, device);
}

Status LaunchRows(const BatchNormForwardArgs& args, const DeviceTraits& device, Workspace workspace,
                  StreamHandle stream) {
  return LaunchRowsForward(*PlanTraining(args, device), args, workspace.data, stream);
}

Status LaunchRows(const BatchNormBackwardArgs& args, const DeviceTraits& device,
                  Workspace workspace, StreamHandle stream) {
  return LaunchRowsBackward(*PlanTraining(args, device), args, workspace.data, stream);
}

}  // namespace norm::internal
