#include "bench/kernel_facts.h"

#include <cuda_runtime_api.h>

#include <cmath>

#include "norm/cuda/cuda_status.h"

namespace norm::bench {
namespace {

Result<KernelFacts> FactsOf(const cudaKernelNodeParams& node) {
  cudaFuncAttributes attributes;
  NORM_RETURN_IF_CUDA_ERROR(cudaFuncGetAttributes(&attributes, node.func));
  KernelFacts facts;
  facts.registers_per_thread = attributes.numRegs;
  facts.shared_bytes = static_cast<int64_t>(attributes.sharedSizeBytes + node.sharedMemBytes);
  facts.blocks =
      static_cast<int64_t>(node.gridDim.x) * static_cast<int64_t>(node.gridDim.y * node.gridDim.z);
  facts.threads = static_cast<int>(node.blockDim.x * node.blockDim.y * node.blockDim.z);
  int resident = 0;
  NORM_RETURN_IF_CUDA_ERROR(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &resident, node.func, facts.threads, node.sharedMemBytes));
  int device = 0;
  int threads_per_sm = 0;
  NORM_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  NORM_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&threads_per_sm, cudaDevAttrMaxThreadsPerMultiProcessor, device));
  facts.occupancy = static_cast<double>(resident) * facts.threads / threads_per_sm;
  return facts;
}

Result<std::vector<KernelFacts>> FactsOf(cudaGraph_t graph) {
  size_t count = 0;
  NORM_RETURN_IF_CUDA_ERROR(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  NORM_RETURN_IF_CUDA_ERROR(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::vector<KernelFacts> kernels;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    NORM_RETURN_IF_CUDA_ERROR(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeKernel) continue;
    cudaKernelNodeParams params = {};
    NORM_RETURN_IF_CUDA_ERROR(cudaGraphKernelNodeGetParams(node, &params));
    const Result<KernelFacts> facts = FactsOf(params);
    NORM_RETURN_IF_ERROR(facts.status());
    kernels.push_back(facts.value());
  }
  return kernels;
}

template <typename Value>
std::string Join(const std::vector<KernelFacts>& kernels, Value value) {
  std::string text;
  for (const KernelFacts& kernel : kernels) {
    if (!text.empty()) text += '/';
    text += std::to_string(value(kernel));
  }
  return text;
}

}  // namespace

Result<std::vector<KernelFacts>> KernelsOf(const Enqueue& work, cuda::StreamView stream) {
  NORM_RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  const Status enqueued = work(stream);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.get(), &graph);
  NORM_RETURN_IF_ERROR(enqueued);
  NORM_RETURN_IF_CUDA_ERROR(ended);
  Result<std::vector<KernelFacts>> kernels = FactsOf(graph);
  NORM_RETURN_IF_CUDA_ERROR(cudaGraphDestroy(graph));
  return kernels;
}

std::string JoinRegisters(const std::vector<KernelFacts>& kernels) {
  return Join(kernels, [](const KernelFacts& kernel) { return kernel.registers_per_thread; });
}
std::string JoinSharedBytes(const std::vector<KernelFacts>& kernels) {
  return Join(kernels, [](const KernelFacts& kernel) { return kernel.shared_bytes; });
}
std::string JoinOccupancy(const std::vector<KernelFacts>& kernels) {
  return Join(kernels,
              [](const KernelFacts& kernel) { return std::lround(kernel.occupancy * 100); });
}

}  // namespace norm::bench
