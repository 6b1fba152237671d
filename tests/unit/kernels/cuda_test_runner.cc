// The CUDA backend as the NormRunner of the kernel test bodies. Without a device every test of the
// executable is skipped, and says why.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "norm/cuda/copy.h"
#include "norm/cuda/device_buffer.h"
#include "norm/cuda/device_info.h"
#include "norm/cuda/pinned_buffer.h"
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

/// Device memory and page-locked host memory that every test of the process uses: a call then needs
/// neither an allocation nor more than one wait. Of the thread that asked first; others get nothing
/// of it.
class Arena {
 public:
  static constexpr size_t kDeviceBytes = size_t{64} << 20;
  static constexpr size_t kStagingBytes = size_t{32} << 20;

  /// Never destroyed: the runtime may end before.
  static Arena& OfProcess() {
    static Arena* const arena = new Arena;
    return *arena;
  }

  /// Null where the rest is too small, or where each tensor is to have an allocation of its own for
  /// a tool that watches their ends.
  void* Allocate(size_t bytes) {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (!IsOwn() || separate_ || device_used_ + rounded > device_.size_bytes()) return nullptr;
    void* data = static_cast<std::byte*>(device_.data()) + device_used_;
    device_used_ += rounded;
    ++blocks_;
    return data;
  }
  /// Whether `data` came from Allocate.
  bool Free(void* data) {
    const auto* begin = static_cast<const std::byte*>(device_.data());
    if (data < begin || data >= begin + device_.size_bytes()) return false;
    if (--blocks_ == 0) device_used_ = 0;
    return true;
  }

  /// Null where the rest is too small.
  std::byte* Stage(size_t bytes) {
    if (!IsOwn() || staging_used_ + bytes > staging_.size_bytes()) return nullptr;
    std::byte* data = staging_.data() + staging_used_;
    staging_used_ += bytes;
    return data;
  }
  void ReleaseStaging() {
    if (IsOwn()) staging_used_ = 0;
  }

 private:
  static constexpr size_t kAlignment = 256;

  Arena() : separate_(std::getenv("NORM_TEST_SEPARATE_ALLOCATIONS") != nullptr) {
    Result<cuda::DeviceBuffer> device = cuda::DeviceBuffer::Allocate(kDeviceBytes, 0);
    Result<cuda::PinnedBuffer> staging = cuda::PinnedBuffer::Allocate(kStagingBytes);
    Check(device.status());
    Check(staging.status());
    if (device.ok()) device_ = std::move(device).value();
    if (staging.ok()) staging_ = std::move(staging).value();
  }

  bool IsOwn() const { return std::this_thread::get_id() == thread_; }

  bool separate_;
  const std::thread::id thread_ = std::this_thread::get_id();
  cuda::DeviceBuffer device_;
  cuda::PinnedBuffer staging_;
  size_t device_used_ = 0;
  size_t staging_used_ = 0;
  int blocks_ = 0;
};

class CudaRunner : public NormRunner {
 public:
  explicit CudaRunner(cuda::Stream stream) : stream_(std::move(stream)) {}

  std::string name() const override { return "cuda"; }

 protected:
  void* Allocate(size_t bytes) override {
    if (void* data = arena_.Allocate(bytes); data != nullptr) return data;
    Result<cuda::DeviceBuffer> buffer = cuda::DeviceBuffer::Allocate(bytes, stream_.device());
    Check(buffer.status());
    if (!buffer.ok()) return nullptr;
    void* data = buffer.value().data();
    buffers_.emplace(data, std::move(buffer).value());
    return data;
  }
  void Free(void* data) override {
    if (arena_.Free(data)) return;
    const auto buffer = buffers_.find(data);
    if (buffer == buffers_.end()) return;
    Check(buffer->second.Close());
    buffers_.erase(buffer);
  }
  void Fill(void* to, std::byte value, size_t bytes) override {
    Check(cuda::FillAsync(to, value, bytes, stream_.view()));
  }
  void CopyIn(void* to, const void* host_from, size_t bytes) override {
    std::byte* staged = Stage(bytes);
    if (staged != nullptr) {
      std::memcpy(staged, host_from, bytes);
      Check(cuda::CopyAsync(to, staged, bytes, stream_.view()));
    } else {
      Check(cuda::CopyAsync(to, host_from, bytes, stream_.view()));
      Wait();
    }
  }
  void CopyOut(void* host_to, const void* from, size_t bytes) override {
    std::byte* staged = Stage(bytes);
    if (staged != nullptr) staged_outputs_.push_back({host_to, staged, bytes});
    Check(cuda::CopyAsync(staged != nullptr ? staged : host_to, from, bytes, stream_.view()));
  }
  void Wait() override {
    Check(stream_.view().Synchronize());
    for (const StagedOutput& output : staged_outputs_) {
      std::memcpy(output.host_to, output.staged, output.bytes);
    }
    staged_outputs_.clear();
    arena_.ReleaseStaging();
  }
  size_t WorkspaceBytes(const NormCall& call) override {
    return std::visit([](const auto& args) { return CudaCalls::Bytes(args); }, call);
  }
  Status Execute(const NormCall& call, Workspace workspace) override {
    return std::visit(
        [&](const auto& args) { return CudaCalls::Call(args, workspace, stream_.view().handle()); },
        call);
  }
  size_t SegmentsWorkspaceBytes(const std::vector<NormCall>& calls) override {
    return VisitSegments(calls, [](auto segments) { return CudaCalls::SegmentsBytes(segments); });
  }
  Status ExecuteSegments(const std::vector<NormCall>& calls, Workspace workspace) override {
    return VisitSegments(calls, [&](auto segments) {
      return CudaCalls::CallSegments(segments, workspace, stream_.view().handle());
    });
  }

 private:
  struct StagedOutput {
    void* host_to;
    const std::byte* staged;
    size_t bytes;
  };

  /// Null where the copy has to do without.
  std::byte* Stage(size_t bytes) {
    if (bytes > Arena::kStagingBytes / 4) return nullptr;
    std::byte* staged = arena_.Stage(bytes);
    if (staged != nullptr) return staged;
    Wait();
    return arena_.Stage(bytes);
  }

  Arena& arena_ = Arena::OfProcess();
  cuda::Stream stream_;
  std::unordered_map<void*, cuda::DeviceBuffer> buffers_;
  std::vector<StagedOutput> staged_outputs_;
};

}  // namespace

std::unique_ptr<NormRunner> MakeTestRunner() {
  Result<cuda::Stream> stream = cuda::Stream::Create(0);
  Check(stream.status());
  return std::make_unique<CudaRunner>(std::move(stream).value());
}

}  // namespace norm::testing
