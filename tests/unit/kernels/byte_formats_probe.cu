#include "tests/unit/kernels/byte_formats_probe.h"

#include <cuda_runtime.h>

#include "primitives/byte_formats.cuh"

namespace norm_device {
namespace {

__global__ void Encode(const float4* values, uint32_t* quantized, uint32_t* by_bits,
                       int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float four[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
  quantized[i] = F8E4M3::Quantize(four, 1.0F).words[0];
  uint32_t codes = 0;
  for (int k = 0; k < 4; ++k) codes |= F8E4M3::EncodeByBits(four[k]) << (8 * k);
  by_bits[i] = codes;
}

}  // namespace

F8Codes EncodeF8(const std::vector<float>& values) {
  F8Codes codes;
  codes.quantized.resize(values.size());
  codes.by_bits.resize(values.size());
  const auto count = static_cast<int64_t>(values.size() / 4);
  constexpr int kThreads = 256;
  std::byte* memory = nullptr;
  cudaStream_t stream = nullptr;
  if (cudaMalloc(&memory, values.size() * 6) != cudaSuccess) return codes;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess) {
    auto* input = reinterpret_cast<float4*>(memory);
    auto* quantized = reinterpret_cast<uint32_t*>(memory + values.size() * 4);
    auto* by_bits = reinterpret_cast<uint32_t*>(memory + values.size() * 5);
    bool ok = cudaMemcpyAsync(input, values.data(), values.size() * 4, cudaMemcpyHostToDevice,
                              stream) == cudaSuccess;
    Encode<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
        input, quantized, by_bits, count);
    ok = ok && cudaGetLastError() == cudaSuccess;
    ok = ok && cudaMemcpyAsync(codes.quantized.data(), quantized, values.size(),
                               cudaMemcpyDeviceToHost, stream) == cudaSuccess;
    ok = ok && cudaMemcpyAsync(codes.by_bits.data(), by_bits, values.size(), cudaMemcpyDeviceToHost,
                               stream) == cudaSuccess;
    codes.ok = cudaStreamSynchronize(stream) == cudaSuccess && ok;
    (void)cudaStreamDestroy(stream);
  }
  (void)cudaFree(memory);
  return codes;
}

}  // namespace norm_device
