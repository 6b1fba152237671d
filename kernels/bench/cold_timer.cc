#include "bench/cold_timer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "bench/timing_device.h"
#include "dispatch/launch.h"
#include "norm/cuda/copy.h"
#include "norm/cuda/cuda_status.h"

namespace norm::bench {
namespace {

constexpr int64_t kFlushBytes = int64_t{256} << 20;
constexpr int kGraphReplays = 21;
constexpr auto kWarmUp = std::chrono::milliseconds(300);

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Ends a capture and destroys what came of it, whatever happens in between.
class CapturedGraph {
 public:
  ~CapturedGraph() {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
  }

  Status Capture(const Enqueue& work, int count, cuda::StreamView stream) {
    NORM_RETURN_IF_CUDA_ERROR(
        cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    Status status;
    for (int i = 0; i < count && status.ok(); ++i) status = work(stream);
    const cudaError_t ended = cudaStreamEndCapture(stream.get(), &graph_);
    NORM_RETURN_IF_ERROR(status);
    NORM_RETURN_IF_CUDA_ERROR(ended);
    NORM_RETURN_IF_CUDA_ERROR(cudaGraphInstantiate(&executable_, graph_, 0));
    return Status();
  }
  Status Launch(cuda::StreamView stream) const {
    NORM_RETURN_IF_CUDA_ERROR(cudaGraphLaunch(executable_, stream.get()));
    return Status();
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

Status EnqueueEmptyKernel(cuda::StreamView stream) {
  internal::LaunchConfig config;
  config.threads_x = 32;
  return internal::Launch(norm_device::EmptyKernel(), config, norm_device::EmptyParams{0},
                          stream.handle());
}

ColdTimer::ColdTimer(cuda::Stream stream, cuda::Event begin, cuda::Event end,
                     cuda::DeviceBuffer flushed, cuda::DeviceBuffer sink, int samples,
                     int flush_blocks)
    : stream_(std::move(stream)),
      begin_(std::move(begin)),
      end_(std::move(end)),
      flushed_(std::move(flushed)),
      sink_(std::move(sink)),
      samples_(samples),
      flush_blocks_(flush_blocks) {}

Result<ColdTimer> ColdTimer::Create(int device, int samples) {
  Result<cuda::DeviceInfo> info = cuda::QueryDevice(device);
  NORM_RETURN_IF_ERROR(info.status());
  Result<cuda::Stream> stream = cuda::Stream::Create(device);
  NORM_RETURN_IF_ERROR(stream.status());
  Result<cuda::Event> begin = cuda::Event::Create(device, cuda::EventTiming::kEnabled);
  NORM_RETURN_IF_ERROR(begin.status());
  Result<cuda::Event> end = cuda::Event::Create(device, cuda::EventTiming::kEnabled);
  NORM_RETURN_IF_ERROR(end.status());
  Result<cuda::DeviceBuffer> flushed = cuda::DeviceBuffer::Allocate(kFlushBytes, device);
  NORM_RETURN_IF_ERROR(flushed.status());
  Result<cuda::DeviceBuffer> sink = cuda::DeviceBuffer::Allocate(sizeof(uint32_t), device);
  NORM_RETURN_IF_ERROR(sink.status());
  NORM_RETURN_IF_ERROR(
      cuda::FillAsync(flushed.value().data(), std::byte{1}, kFlushBytes, stream.value().view()));
  return ColdTimer(std::move(stream).value(), std::move(begin).value(), std::move(end).value(),
                   std::move(flushed).value(), std::move(sink).value(), samples,
                   info.value().sm_count * 8);
}

Status ColdTimer::Flush() {
  internal::LaunchConfig config;
  config.blocks_x = flush_blocks_;
  config.threads_x = 256;
  const norm_device::ReadAllParams params = {flushed_.data(), kFlushBytes,
                                             static_cast<uint32_t*>(sink_.data())};
  return internal::Launch(norm_device::ReadAllKernel(), config, params, stream_.view().handle());
}

Status ColdTimer::WarmUp() {
  const auto end = std::chrono::steady_clock::now() + kWarmUp;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 64; ++i) NORM_RETURN_IF_ERROR(Flush());
    NORM_RETURN_IF_ERROR(stream_.view().Synchronize());
  }
  return Status();
}

Result<double> ColdTimer::MedianUs(const Enqueue& work) {
  const cuda::StreamView stream = stream_.view();
  NORM_RETURN_IF_ERROR(work(stream));
  NORM_RETURN_IF_ERROR(stream.Synchronize());
  std::vector<double> us;
  for (int sample = 0; sample < samples_; ++sample) {
    NORM_RETURN_IF_ERROR(Flush());
    NORM_RETURN_IF_ERROR(begin_.Record(stream));
    NORM_RETURN_IF_ERROR(work(stream));
    NORM_RETURN_IF_ERROR(end_.Record(stream));
    NORM_RETURN_IF_ERROR(end_.Synchronize());
    const Result<float> ms = cuda::ElapsedMs(begin_, end_);
    NORM_RETURN_IF_ERROR(ms.status());
    us.push_back(ms.value() * 1e3);
  }
  return Median(std::move(us));
}

Result<double> ColdTimer::CopyUs(int64_t bytes) {
  const auto known = copies_.find(bytes);
  if (known != copies_.end()) return known->second;
  const auto half = static_cast<size_t>(std::max<int64_t>(1, bytes / 2));
  Result<cuda::DeviceBuffer> from = cuda::DeviceBuffer::Allocate(half, device());
  NORM_RETURN_IF_ERROR(from.status());
  Result<cuda::DeviceBuffer> to = cuda::DeviceBuffer::Allocate(half, device());
  NORM_RETURN_IF_ERROR(to.status());
  NORM_RETURN_IF_ERROR(cuda::FillAsync(from.value().data(), std::byte{1}, half, stream_.view()));
  Result<double> us = MedianUs([&](cuda::StreamView stream) {
    return cuda::CopyAsync(to.value().data(), from.value().data(), half, stream);
  });
  if (us.ok()) copies_[bytes] = us.value();
  return us;
}

Result<double> ColdTimer::CopyGbs() {
  const Result<int64_t> free_bytes = cuda::FreeDeviceMemoryBytes(device());
  NORM_RETURN_IF_ERROR(free_bytes.status());
  const int64_t bytes = std::min(int64_t{4} << 30, free_bytes.value() / 2 / 4096 * 4096);
  const Result<double> us = CopyUs(bytes);
  NORM_RETURN_IF_ERROR(us.status());
  return static_cast<double>(bytes) / (us.value() * 1e3);
}

Result<double> ColdTimer::LaunchUs() { return MedianUs(EnqueueEmptyKernel); }

Result<double> ColdTimer::GraphUs(const Enqueue& work, int count) {
  const cuda::StreamView stream = stream_.view();
  // Outside of the capture first: lazy loading and attributes are set once.
  NORM_RETURN_IF_ERROR(work(stream));
  NORM_RETURN_IF_ERROR(stream.Synchronize());
  CapturedGraph graph;
  NORM_RETURN_IF_ERROR(graph.Capture(work, count, stream));
  NORM_RETURN_IF_ERROR(graph.Launch(stream));
  NORM_RETURN_IF_ERROR(stream.Synchronize());
  std::vector<double> us;
  for (int replay = 0; replay < kGraphReplays; ++replay) {
    NORM_RETURN_IF_ERROR(begin_.Record(stream));
    NORM_RETURN_IF_ERROR(graph.Launch(stream));
    NORM_RETURN_IF_ERROR(end_.Record(stream));
    NORM_RETURN_IF_ERROR(end_.Synchronize());
    const Result<float> ms = cuda::ElapsedMs(begin_, end_);
    NORM_RETURN_IF_ERROR(ms.status());
    us.push_back(ms.value() * 1e3 / count);
  }
  return Median(std::move(us));
}

}  // namespace norm::bench
