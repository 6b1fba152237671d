#include "server/device/cuda_copy_bandwidth.h"

#include <algorithm>
#include <cstddef>

#include "norm/cuda/copy.h"
#include "norm/cuda/device_buffer.h"
#include "norm/cuda/device_guard.h"
#include "norm/cuda/event.h"
#include "norm/cuda/stream.h"

namespace norm::server {

Result<double> MeasureDeviceCopyBandwidth(int ordinal) {
  constexpr size_t kBytes = size_t{256} << 20;
  const cuda::DeviceGuard device(ordinal);
  NORM_RETURN_IF_ERROR(device.status());
  Result<cuda::Stream> stream = cuda::Stream::Create(ordinal);
  NORM_RETURN_IF_ERROR(stream.status());
  Result<cuda::Event> start = cuda::Event::Create(ordinal, cuda::EventTiming::kEnabled);
  NORM_RETURN_IF_ERROR(start.status());
  Result<cuda::Event> end = cuda::Event::Create(ordinal, cuda::EventTiming::kEnabled);
  NORM_RETURN_IF_ERROR(end.status());
  Result<cuda::DeviceBuffer> from = cuda::DeviceBuffer::Allocate(kBytes, ordinal);
  NORM_RETURN_IF_ERROR(from.status());
  Result<cuda::DeviceBuffer> to = cuda::DeviceBuffer::Allocate(kBytes, ordinal);
  NORM_RETURN_IF_ERROR(to.status());

  const cuda::StreamView view = stream.value().view();
  NORM_RETURN_IF_ERROR(cuda::FillAsync(from.value().data(), std::byte{1}, kBytes, view));
  double best = 0.0;
  for (int i = 0; i < 5; ++i) {
    NORM_RETURN_IF_ERROR(start.value().Record(view));
    NORM_RETURN_IF_ERROR(cuda::CopyAsync(to.value().data(), from.value().data(), kBytes, view));
    NORM_RETURN_IF_ERROR(end.value().Record(view));
    NORM_RETURN_IF_ERROR(end.value().Synchronize());
    const Result<float> milliseconds = cuda::ElapsedMs(start.value(), end.value());
    NORM_RETURN_IF_ERROR(milliseconds.status());
    best = std::max(best, 2.0 * kBytes / std::max(milliseconds.value() * 1e-3, 1e-9));
  }
  return best;
}

}  // namespace norm::server
