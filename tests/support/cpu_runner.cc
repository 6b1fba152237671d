#include "tests/support/cpu_runner.h"

#include <cstdlib>
#include <cstring>
#include <span>

namespace norm::testing {
namespace {

/// Selects the cpu:: functions by argument type.
struct ForwardOrBackward {
  static size_t Bytes(const RmsNormForwardArgs& a) { return cpu::RmsNormForwardWorkspaceBytes(a); }
  static size_t Bytes(const RmsNormBackwardArgs& a) {
    return cpu::RmsNormBackwardWorkspaceBytes(a);
  }
  static size_t Bytes(const LayerNormForwardArgs& a) {
    return cpu::LayerNormForwardWorkspaceBytes(a);
  }
  static size_t Bytes(const LayerNormBackwardArgs& a) {
    return cpu::LayerNormBackwardWorkspaceBytes(a);
  }
  static size_t Bytes(const BatchNormForwardArgs& a) {
    return cpu::BatchNormForwardWorkspaceBytes(a);
  }
  static size_t Bytes(const BatchNormBackwardArgs& a) {
    return cpu::BatchNormBackwardWorkspaceBytes(a);
  }

  static Status Call(const RmsNormForwardArgs& a, Workspace w, ThreadPool& t) {
    return cpu::RmsNormForward(a, w, t);
  }
  static Status Call(const RmsNormBackwardArgs& a, Workspace w, ThreadPool& t) {
    return cpu::RmsNormBackward(a, w, t);
  }
  static Status Call(const LayerNormForwardArgs& a, Workspace w, ThreadPool& t) {
    return cpu::LayerNormForward(a, w, t);
  }
  static Status Call(const LayerNormBackwardArgs& a, Workspace w, ThreadPool& t) {
    return cpu::LayerNormBackward(a, w, t);
  }
  static Status Call(const BatchNormForwardArgs& a, Workspace w, ThreadPool& t) {
    return cpu::BatchNormForward(a, w, t);
  }
  static Status Call(const BatchNormBackwardArgs& a, Workspace w, ThreadPool& t) {
    return cpu::BatchNormBackward(a, w, t);
  }

  // Segments, of the ops that take them.
  template <typename Args>
  static size_t SegmentsBytes(std::span<const Args>) {
    return 0;
  }
  static size_t SegmentsBytes(std::span<const RmsNormForwardArgs> a) {
    return cpu::RmsNormForwardSegmentsWorkspaceBytes(a);
  }
  static size_t SegmentsBytes(std::span<const LayerNormForwardArgs> a) {
    return cpu::LayerNormForwardSegmentsWorkspaceBytes(a);
  }
  static size_t SegmentsBytes(std::span<const RmsNormBackwardArgs> a) {
    return cpu::RmsNormBackwardSegmentsWorkspaceBytes(a);
  }
  static size_t SegmentsBytes(std::span<const LayerNormBackwardArgs> a) {
    return cpu::LayerNormBackwardSegmentsWorkspaceBytes(a);
  }
  template <typename Args>
  static Status CallSegments(std::span<const Args>, Workspace, ThreadPool&) {
    return Status(StatusCode::kUnsupported, "no segments of this op");
  }
  static Status CallSegments(std::span<const RmsNormForwardArgs> a, Workspace w, ThreadPool& t) {
    return cpu::RmsNormForwardSegments(a, w, t);
  }
  static Status CallSegments(std::span<const LayerNormForwardArgs> a, Workspace w, ThreadPool& t) {
    return cpu::LayerNormForwardSegments(a, w, t);
  }
  static Status CallSegments(std::span<const RmsNormBackwardArgs> a, Workspace w, ThreadPool& t) {
    return cpu::RmsNormBackwardSegments(a, w, t);
  }
  static Status CallSegments(std::span<const LayerNormBackwardArgs> a, Workspace w, ThreadPool& t) {
    return cpu::LayerNormBackwardSegments(a, w, t);
  }
};

class CpuRunner : public NormRunner {
 public:
  explicit CpuRunner(int threads) : threads_(threads) {}

  std::string name() const override { return "cpu"; }

 protected:
  void* Allocate(size_t bytes) override {
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  void Free(void* data) override { std::free(data); }
  void Fill(void* to, std::byte value, size_t bytes) override {
    std::memset(to, std::to_integer<int>(value), bytes);
  }
  void CopyIn(void* to, const void* host_from, size_t bytes) override {
    Copy(to, host_from, bytes);
  }
  void CopyOut(void* host_to, const void* from, size_t bytes) override {
    Copy(host_to, from, bytes);
  }
  void Wait() override {}
  size_t WorkspaceBytes(const NormCall& call) override {
    return std::visit([](const auto& args) { return ForwardOrBackward::Bytes(args); }, call);
  }
  Status Execute(const NormCall& call, Workspace workspace) override {
    return std::visit(
        [&](const auto& args) { return ForwardOrBackward::Call(args, workspace, threads_); }, call);
  }
  size_t SegmentsWorkspaceBytes(const std::vector<NormCall>& calls) override {
    return VisitSegments(calls,
                         [](auto segments) { return ForwardOrBackward::SegmentsBytes(segments); });
  }
  Status ExecuteSegments(const std::vector<NormCall>& calls, Workspace workspace) override {
    return VisitSegments(calls, [&](auto segments) {
      return ForwardOrBackward::CallSegments(segments, workspace, threads_);
    });
  }

 private:
  static void Copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }

  ThreadPool threads_;
};

}  // namespace

std::unique_ptr<NormRunner> MakeCpuRunner(int threads) {
  return std::make_unique<CpuRunner>(threads);
}

}  // namespace norm::testing
