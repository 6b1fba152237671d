#include "row_norm/row_norm_ring_cuda.h"

#include <atomic>
#include <random>

#include "dispatch/dtype_dispatch.h"
#include "dispatch/launch.h"
#include "row_norm/row_norm_kind.h"
#include "row_norm/row_norm_ring_tuning.h"
#include "validation/argument_checks.h"

namespace norm::internal {
namespace {

using norm_device::RowLaunchKind;

/// Different for every launch of this process, and for all that matters of others: stale memory
/// must not look like counters in use. The highest bit is the kernel's.
unsigned long long NextClaimTag() {
  static std::atomic<unsigned long long> next = [] {
    std::random_device random;
    return static_cast<unsigned long long>(random()) << 32 | random();
  }();
  constexpr unsigned long long kMask = ~0ULL >> 1;
  const unsigned long long tag = next.fetch_add(1, std::memory_order_relaxed) & kMask;
  return tag == 0 ? 1 : tag;
}

const void* Kernel(const RowNormForwardArgs& args, const RowForwardPlan& plan, RowLaunchKind launch,
                   bool plain) {
  return VisitElementPair(args.dtype, args.weight_dtype, [&](auto pair) {
    return norm_device::RowRingKernel<decltype(pair)>(launch, DeviceKind(args.kind), plan.method,
                                                      plain);
  });
}

}  // namespace

size_t RowRingWorkspaceBytes(const RowNormForwardArgs& args, const RowForwardPlan& plan) {
  const bool claims = args.rows > plan.max_clusters &&
                      RowRingClaims(plan, DeviceKind(args.kind), args.hidden_size, args.dtype);
  return claims ? kWorkspaceAlignment : 0;
}

Status LaunchRowRing(const RowNormForwardArgs& args, const RowForwardPlan& plan,
                     const norm_device::RowForwardParams& params, Workspace workspace,
                     StreamHandle stream) {
  static_assert(sizeof(norm_device::RowClaims) <= kWorkspaceAlignment);
  const size_t workspace_bytes = RowRingWorkspaceBytes(args, plan);
  NORM_RETURN_IF_ERROR(CheckWorkspace(workspace, workspace_bytes));
  const norm_device::RingShape shape = RowRingShape(plan, args.hidden_size, args.dtype);
  norm_device::RowRingParams ring = {
      params, shape,
      norm_device::RingSlots(RowRingGranules(plan),
                             shape.Slots(static_cast<int>(plan.shared_bytes)),
                             params.residual != nullptr),
      nullptr, 0};
  if (workspace_bytes > 0) {
    ring.claims = static_cast<norm_device::RowClaims*>(workspace.data);
    ring.claim_tag = NextClaimTag();
  }
  const bool plain = params.aligned && params.residual == nullptr && !params.round_normalized;
  return Launch(Kernel(args, plan, RowLaunchKind::kSingle, plain),
                RowForwardLaunch(plan, args.rows), ring, stream);
}

const void* RowRingSegmentsKernel(const RowNormForwardArgs& args, const RowForwardPlan& plan) {
  return Kernel(args, plan, RowLaunchKind::kSegments, false);
}

}  // namespace norm::internal
