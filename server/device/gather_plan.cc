#include "server/device/gather_plan.h"

#include <algorithm>

namespace norm::server {
namespace {

// Long runs are cut, so that threads can share a copy.
constexpr int64_t kMaxPieceBytes = int64_t{128} << 10;

/// Rounded up.
int64_t Quotient(int64_t value, int64_t by) { return (value + by - 1) / by; }

/// Equal portions of a range of the slab; a portion and its number.
struct Portions {
  int64_t start = 0;
  int64_t bytes = 0;

  int64_t Of(int64_t at) const { return bytes > 0 ? (at - start) / bytes : 0; }
  int64_t EndOf(int64_t portion) const { return start + (portion + 1) * bytes; }
};

void AddPieces(const InputTensor& input, int64_t to, const Portions& chunks, bool direct,
               GatherPlan& plan) {
  for (absl::Span<const std::byte> run : input.runs) {
    while (!run.empty()) {
      const int64_t chunk = chunks.Of(to);
      auto size = static_cast<int64_t>(run.size());
      if (chunks.bytes > 0) {
        size = std::min(size, chunks.EndOf(chunk) - to);
      }
      if (!direct) {
        size = std::min(size, kMaxPieceBytes);
        plan.gathered_bytes += size;
      }
      plan.pieces.push_back(
          {to, run.first(static_cast<size_t>(size)), static_cast<int32_t>(chunk), direct});
      to += size;
      run.remove_prefix(static_cast<size_t>(size));
    }
  }
}

void AddTensor(const Batch& batch, const BatchSegment& segment, TensorRole role,
               const Portions& chunks, bool direct, GatherPlan& plan) {
  const auto i = static_cast<size_t>(role);
  int64_t to = segment.inputs[i].offset;
  for (const auto& job : JobsOf(segment, batch)) {
    if (HasExpectedSize(*job, role)) {
      AddPieces(job->inputs[i], to, chunks, direct, plan);
    }
    if (IsParameter(role)) {
      return;
    }
    to += TensorBytes(job->problem, role);
  }
}

}  // namespace

absl::Span<const CopyPiece> GatherPlan::ChunkPieces(size_t chunk) const {
  const size_t start = chunk == 0 ? 0 : chunk_ends[chunk - 1];
  return absl::MakeConstSpan(pieces).subspan(start, chunk_ends[chunk] - start);
}

void PlanGather(const Batch& batch, const BatchLayout& layout, const GatherOptions& options,
                GatherPlan& plan) {
  plan.pieces.clear();
  plan.chunk_ends.clear();
  plan.gathered_bytes = 0;
  const int64_t chunk_bytes =
      options.chunk_bytes == 0
          ? 0
          : std::max(options.chunk_bytes, Quotient(layout.input_bytes, kMaxGatherChunks));
  for (const BatchSegment& segment : layout.segments) {
    for (size_t i = 0; i < kTensorRoleCount; ++i) {
      const auto role = static_cast<TensorRole>(i);
      if (!segment.problem.inputs.Has(role)) {
        continue;
      }
      const int64_t start = segment.inputs[i].offset;
      Portions chunks = {0, chunk_bytes};
      if (options.slices != nullptr) {
        chunks = IsParameter(role)
                     ? Portions()
                     : Portions{start, SliceOffset(segment.problem, *options.slices, 1, role)};
      }
      const bool direct = options.direct && start >= layout.gathered_bytes;
      AddTensor(batch, segment, role, chunks, direct, plan);
    }
  }
  std::sort(plan.pieces.begin(), plan.pieces.end(), [](const CopyPiece& a, const CopyPiece& b) {
    return a.chunk != b.chunk ? a.chunk < b.chunk : a.to < b.to;
  });
  int64_t chunks = 1;
  if (options.slices != nullptr) {
    chunks = options.slices->count;
  } else if (chunk_bytes > 0) {
    chunks = std::max<int64_t>(1, Quotient(layout.input_bytes, chunk_bytes));
  }
  size_t end = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    while (end < plan.pieces.size() && plan.pieces[end].chunk == chunk) {
      ++end;
    }
    plan.chunk_ends.push_back(end);
  }
}

}  // namespace norm::server
