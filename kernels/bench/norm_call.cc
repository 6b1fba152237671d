#include "bench/norm_call.h"

namespace norm::bench {
namespace {

/// The library's functions, chosen by argument type.
struct LibraryCalls {
  Workspace workspace;
  StreamHandle stream;

  Status operator()(const RmsNormForwardArgs& a) const {
    return RmsNormForward(a, workspace, stream);
  }
  Status operator()(const RmsNormBackwardArgs& a) const {
    return RmsNormBackward(a, workspace, stream);
  }
  Status operator()(const LayerNormForwardArgs& a) const {
    return LayerNormForward(a, workspace, stream);
  }
  Status operator()(const LayerNormBackwardArgs& a) const {
    return LayerNormBackward(a, workspace, stream);
  }
  Status operator()(const BatchNormForwardArgs& a) const {
    return BatchNormForward(a, workspace, stream);
  }
  Status operator()(const BatchNormBackwardArgs& a) const {
    return BatchNormBackward(a, workspace, stream);
  }
};

struct LibraryWorkspaces {
  size_t operator()(const RmsNormForwardArgs& a) const { return RmsNormForwardWorkspaceBytes(a); }
  size_t operator()(const RmsNormBackwardArgs& a) const { return RmsNormBackwardWorkspaceBytes(a); }
  size_t operator()(const LayerNormForwardArgs& a) const {
    return LayerNormForwardWorkspaceBytes(a);
  }
  size_t operator()(const LayerNormBackwardArgs& a) const {
    return LayerNormBackwardWorkspaceBytes(a);
  }
  size_t operator()(const BatchNormForwardArgs& a) const {
    return BatchNormForwardWorkspaceBytes(a);
  }
  size_t operator()(const BatchNormBackwardArgs& a) const {
    return BatchNormBackwardWorkspaceBytes(a);
  }
};

}  // namespace

Status ValidateCall(const NormCall& call) {
  return std::visit([](const auto& args) { return Validate(args); }, call);
}

size_t WorkspaceBytes(const NormCall& call) { return std::visit(LibraryWorkspaces{}, call); }

Status EnqueueCall(const NormCall& call, Workspace workspace, StreamHandle stream) {
  return std::visit(LibraryCalls{workspace, stream}, call);
}

}  // namespace norm::bench
