// The CUDA backend as the NormRunner of the kernel test bodies. Without a device every test of the
// executable is skipped, and says why.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "norm/cuda/copy.h"
#include "norm/cuda/device_buffer.h"
#include "norm/cuda/device_info.h"
#include "norm/cuda/stream.h"
#include "tests/support/test_runner.h"

namespace norm::testing {
namespace {

/// Selects the functions of the current CUDA device by argument type.
struct CudaCalls {
  static size_t Bytes(const RmsNormForwardArgs& a) { return RmsNormForwardWorkspaceBytes(a); }
  static size_t Bytes(const RmsNormBackwardArgs& a) { return RmsNormBackwardWorkspaceBytes(a); }
  static size_t Bytes(const LayerNormForwardArgs& a) { return LayerNormForwardWorkspaceBytes(a); }
  static size_t Bytes(const LayerNormBackwardArgs& a) { return LayerNormBackwardWorkspaceBytes(a); }
  static size_t Bytes(const BatchNormForwardArgs& a) { return BatchNormForwardWorkspaceBytes(a); }
  static size_t Bytes(const BatchNormBackwardArgs& a) { return BatchNormBackwardWorkspaceBytes(a); }

  static Status Call(const RmsNormForwardArgs& a, Workspace w, StreamHandle s) {
    return RmsNormForward(a, w, s);
  }
  static Status Call(const RmsNormBackwardArgs& a, Workspace w, StreamHandle s) {
    return RmsNormBackward(a, w, s);
  }
  static Status Call(const LayerNormForwardArgs& a, Workspace w, StreamHandle s) {
    return LayerNormForward(a, w, s);
  }
  static Status Call(const LayerNormBackwardArgs& a, Workspace w, StreamHandle s) {
    return LayerNormBackward(a, w, s);
  }
  static Status Call(const BatchNormForwardArgs& a, Workspace w, StreamHandle s) {
    return BatchNormForward(a, w, s);
  }
  static Status Call(const BatchNormBackwardArgs& a, Workspace w, StreamHandle s) {
    return BatchNormBackward(a, w, s);
  }

  // Segments, of the ops that take them.
  template <typename Args>
  static size_t SegmentsBytes(std::span<const Args>) {
    return 0;
  }
  static size_t SegmentsBytes(std::span<const RmsNormForwardArgs> a) {
    return RmsNormForwardSegmentsWorkspaceBytes(a);
  }
  static size_t SegmentsBytes(std::span<const LayerNormForwardArgs> a) {
    return LayerNormForwardSegmentsWorkspaceBytes(a);
  }
  static size_t SegmentsBytes(std::span<const RmsNormBackwardArgs> a) {
    return RmsNormBackwardSegmentsWorkspaceBytes(a);
  }
  static size_t SegmentsBytes(std::span<const LayerNormBackwardArgs> a) {
    return LayerNormBackwardSegmentsWorkspaceBytes(a);
  }
  template <typename Args>
  static Status CallSegments(std::span<const Args>, Workspace, StreamHandle) {
    return Status(StatusCode::kUnsupported, "no segments of this op");
  }
  static Status CallSegments(std::span<const RmsNormForwardArgs> a, Workspace w, StreamHandle s) {
    return RmsNormForwardSegments(a, w, s);
  }
  static Status CallSegments(std::span<const LayerNormForwardArgs> a, Workspace w, StreamHandle s) {
    return LayerNormForwardSegments(a, w, s);
  }
  static Status CallSegments(std::span<const RmsNormBackwardArgs> a, Workspace w, StreamHandle s) {
    return RmsNormBackwardSegments(a, w, s);
  }
  static Status CallSegments(std::span<const LayerNormBackwardArgs> a, Workspace w,
                             StreamHandle s) {
    return LayerNormBackwardSegments(a, w, s);
  }
};

void Check(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

class CudaRunner : public NormRunner {
 public:
  explicit CudaRunner(cuda::Stream stream) : stream_(std::move(stream)) {}

  std::string name() const override { return "cuda"; }

 protected:
  void* Allocate(size_t bytes) override {
    Result<cuda::DeviceBuffer> buffer = cuda::DeviceBuffer::Allocate(bytes, stream_.device());
    Check(buffer.status());
    if (!buffer.ok()) return nullptr;
    void* data = buffer.value().data();
    buffers_.emplace(data, std::move(buffer).value());
    return data;
  }
  void Free(void* data) override {
    const auto buffer = buffers_.find(data);
    if (buffer == buffers_.end()) return;
    Check(buffer->second.Close());
    buffers_.erase(buffer);
  }
  void CopyIn(void* to, const void* host_from, size_t bytes) override {
    Check(cuda::CopyAsync(to, host_from, bytes, stream_.view()));
    Check(stream_.view().Synchronize());
  }
  void CopyOut(void* host_to, const void* from, size_t bytes) override {
    Check(cuda::CopyAsync(host_to, from, bytes, stream_.view()));
    Check(stream_.view().Synchronize());
  }
  size_t WorkspaceBytes(const NormCall& call) override {
    return std::visit([](const auto& args) { return CudaCalls::Bytes(args); }, call);
  }
  Status Execute(const NormCall& call, Workspace workspace) override {
    const Status status = std::visit(
        [&](const auto& args) { return CudaCalls::Call(args, workspace, stream_.view().handle()); },
        call);
    Check(stream_.view().Synchronize());
    return status;
  }
  size_t SegmentsWorkspaceBytes(const std::vector<NormCall>& calls) override {
    return VisitSegments(calls, [](auto segments) { return CudaCalls::SegmentsBytes(segments); });
  }
  Status ExecuteSegments(const std::vector<NormCall>& calls, Workspace workspace) override {
    const Status status = VisitSegments(calls, [&](auto segments) {
      return CudaCalls::CallSegments(segments, workspace, stream_.view().handle());
    });
    Check(stream_.view().Synchronize());
    return status;
  }

 private:
  cuda::Stream stream_;
  std::unordered_map<void*, cuda::DeviceBuffer> buffers_;
};

}  // namespace

std::unique_ptr<NormRunner> MakeTestRunner() {
  Result<cuda::Stream> stream = cuda::Stream::Create(0);
  Check(stream.status());
  return std::make_unique<CudaRunner>(std::move(stream).value());
}

}  // namespace norm::testing
