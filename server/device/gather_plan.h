// Which bytes of the requests go where in the input slab, and in what portions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "server/device/batch_layout.h"
#include "server/device/row_slices.h"

namespace norm::server {

/// One copy from a request to the input slab.
struct CopyPiece {
  int64_t to = 0;  // offset in the slab
  absl::Span<const std::byte> from;
  int32_t chunk = 0;
  bool direct = false;  // page-locked: a device copies it from where it lies
};

/// Copies in the order in which they are worth making. A chunk is what goes on to the device
/// together.
struct GatherPlan {
  std::vector<CopyPiece> pieces;   // chunk by chunk, in rising order of `to` within each
  std::vector<size_t> chunk_ends;  // by chunk: the index behind its last piece
  int64_t gathered_bytes = 0;      // of the pieces that are not direct

  absl::Span<const CopyPiece> ChunkPieces(size_t chunk) const;
};

inline constexpr int kMaxGatherChunks = 64;

struct GatherOptions {
  int64_t chunk_bytes = 0;  // of the slab, more where chunks would be too many; 0: all is one chunk
  const RowSlices* slices = nullptr;  // instead: a chunk for each slice of the only segment
  bool direct = false;                // whether page-locked inputs stay where they are
};

/// Plans bringing the inputs of every job to their place; parameters come from the first job of
/// each segment alone. Jobs that fail CheckInputSizes leave their part of the slab as it is.
/// Overwrites `plan`, whose memory is used again.
void PlanGather(const Batch& batch, const BatchLayout& layout, const GatherOptions& options,
                GatherPlan& plan);

}  // namespace norm::server
