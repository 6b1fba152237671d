// Runs one call of the kernels library on some backend, from and to host memory, and watches what
// it touches.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "norm/kernels/batch_norm.h"
#include "norm/kernels/layer_norm.h"
#include "norm/kernels/rms_norm.h"

namespace norm::testing {

/// Arguments of any op, with host pointers.
using NormCall = std::variant<RmsNormForwardArgs, RmsNormBackwardArgs, LayerNormForwardArgs,
                              LayerNormBackwardArgs, BatchNormForwardArgs, BatchNormBackwardArgs>;

/// One pointer field of a NormCall.
struct TensorField {
  const char* name;
  const void** input;  // the field, if it is an input
  void** output;       // the field, if it is an output
  size_t bytes;
  size_t element_bytes;
};

/// Every pointer field of `call` that is not null. Borrows `call`.
std::vector<TensorField> TensorFields(NormCall& call);

/// Where the backend's copies of the tensors lie: this many elements past a 256-byte boundary.
struct Placement {
  size_t misaligned_elements = 0;
};

/// A backend under test. Implementations supply memory and the calls; Run does the rest.
class NormRunner {
 public:
  virtual ~NormRunner() = default;

  /// Copies the tensors to guarded backend memory, runs the call, copies the outputs back. Fields
  /// with equal host addresses share their memory there, too. A changed guard byte or a changed
  /// input is a test failure that names the tensor.
  Status Run(const NormCall& host_call, Placement placement = {});

  /// The same for calls of one type as the segments of one call. A failed call leaves all outputs as
  /// they were.
  Status RunSegments(const std::vector<NormCall>& host_calls);

  /// "cpu", "cuda".
  virtual std::string name() const = 0;

 protected:
  /// Backend memory, aligned to 256 bytes.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* data) = 0;
  virtual void Fill(void* to, std::byte value, size_t bytes) = 0;
  /// `host_from` may change once this returns.
  virtual void CopyIn(void* to, const void* host_from, size_t bytes) = 0;
  /// `host_to` is there after Wait.
  virtual void CopyOut(void* host_to, const void* from, size_t bytes) = 0;
  /// Returns when everything so far is complete.
  virtual void Wait() = 0;
  /// `call` has backend pointers.
  virtual size_t WorkspaceBytes(const NormCall& call) = 0;
  /// The work is complete after Wait.
  virtual Status Execute(const NormCall& call, Workspace workspace) = 0;
  virtual size_t SegmentsWorkspaceBytes(const std::vector<NormCall>& calls) = 0;
  virtual Status ExecuteSegments(const std::vector<NormCall>& calls, Workspace workspace) = 0;

 private:
  class GuardedBlock;
  class PlacedCall;
};

/// Returns visitor(std::span<const Args>) for calls that are all of the type of the first.
template <typename Visitor>
auto VisitSegments(const std::vector<NormCall>& calls, Visitor&& visitor) {
  return std::visit(
      [&](const auto& first) {
        using Args = std::remove_cvref_t<decltype(first)>;
        std::vector<Args> segments;
        for (const NormCall& call : calls) segments.push_back(std::get<Args>(call));
        return visitor(std::span<const Args>(segments));
      },
      calls.front());
}

}  // namespace norm::testing
