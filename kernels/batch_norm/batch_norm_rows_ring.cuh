// Channel-last BatchNorm on sm_90: every warp has a ring of chunks in shared memory that it fills by
// bulk copies and reads itself. Nothing here may be called on older devices.
#pragma once

#include <cstdint>

#include "batch_norm/batch_norm_rows_copy.cuh"
#include "batch_norm/batch_norm_rows_device.h"
#include "batch_norm/batch_norm_rows_quad.cuh"
#include "primitives/row_reduce.cuh"

namespace norm_device {

/// Where a warp and its lanes stand.
struct RowsPlace {
  int set;
  int block;  // of the set
  int warp;
  int lane;
  int strip;
  int group;
  int columns;      // granules of a strip
  int column;       // the lane's granule
  int lane_row;     // its row of a step
  int lane_rows;    // rows of a step
  int first_chunk;  // of the warp
  int stride;       // from one of its chunks to the next
  int chunks;       // of the warp, through its ring
  int extra;        // further ones, kept in registers

  /// `register_chunks`: kept in registers where ring and L2 do not hold most.
  __device__ RowsPlace(const RowsGrid& grid, int register_chunks)
      : set(static_cast<int>(blockIdx.x) / grid.set_blocks),
        block(static_cast<int>(blockIdx.x) % grid.set_blocks),
        warp(static_cast<int>(threadIdx.x) / kWarpThreads),
        lane(static_cast<int>(threadIdx.x) % kWarpThreads),
        strip(warp % grid.strips),
        group(warp / grid.strips),
        columns(grid.strip_channels / kRowsGranule),
        column(lane % columns),
        lane_row(lane / columns),
        lane_rows(kWarpThreads / columns) {
    // Side by side over the set: blocks pass through the tensor together.
    first_chunk = group * grid.set_blocks + block;
    stride = grid.groups * grid.set_blocks;
    const int end = static_cast<int>(grid.chunks);
    chunks = group < grid.groups && first_chunk < end ? (end - first_chunk - 1) / stride + 1 : 0;
    extra = chunks > 2 * grid.stages + register_chunks ? register_chunks : 0;
    chunks -= extra;
  }
  /// The lane's first row of one of the warp's chunks.
  __device__ int Row(const RowsGrid& grid, int chunk) const {
    return (first_chunk + chunk * stride) * grid.chunk_rows + lane_row;
  }
  /// The row behind a chunk's last.
  __device__ int ChunkEnd(const RowsGrid& grid, int chunk) const {
    return (first_chunk + chunk * stride + 1) * grid.chunk_rows;
  }
  __device__ int StripChannel(const RowsGrid& grid) const {
    return set * grid.slice_channels + strip * grid.strip_channels;
  }
  __device__ int Channel(const RowsGrid& grid) const {
    return StripChannel(grid) + column * kRowsGranule;
  }
};

/// A warp's ring. It passes over the warp's chunks twice, upwards and then downwards: what it holds
/// when it turns stays for the way back.
/// A slot is filled again only after the chunk behind the one that lay there was awaited: a copy may
/// overtake reads of shared memory whose values nothing has used yet.
/// kBulk: filled by bulk copies; otherwise lanes read global memory both times.
template <typename X, int kTensors, bool kBulk>
class RowsRing {
 public:
  static constexpr int kUnroll = RowsUnroll(kTensors, sizeof(StorageOf<X>));
  static constexpr int kBoxBytes = RowsChunkBytes(kTensors, sizeof(StorageOf<X>)) / kTensors;
  static constexpr int kHeld = RowsRegisterChunks(kTensors, sizeof(StorageOf<X>));
  static constexpr int kRingOffset = RowsRingOffset(kTensors);
  using Raw = QuadOf<X>[kTensors][kUnroll];

  __device__ RowsRing(const RowsGrid& grid, const RowsPlace& place,
                      const RowsTensorMap* const (&maps)[kTensors],
                      const StorageOf<X>* const (&tensors)[kTensors], bool wide,
                      unsigned char* shared)
      : grid_(grid),
        place_(place),
        full_(reinterpret_cast<uint64_t*>(shared) + place.warp * kRowsMaxStages),
        data_(shared + kRingOffset +
              static_cast<size_t>(place.warp) * grid.stages * kTensors * kBoxBytes),
        held_(min(place.chunks, grid.stages)),
        flight_(min(grid.flight, max(1, held_ - 1))),
        wide_(wide) {
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
      maps_[t] = maps[t];
      tensors_[t] = tensors[t];
    }
    if (!kBulk) return;
    const bool rereads = place.chunks > held_;
    pass_ = PassPolicy();
    keep_ = rereads ? KeepPolicy() : pass_;
    if (place.lane == 0) {
      for (int stage = 0; stage < held_; ++stage) InitBarrier(&full_[stage], 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    for (int chunk = 0; chunk < min(flight_, held_); ++chunk) Fill(chunk, chunk, true);
  }

  /// The next chunk on the way up.
  __device__ void ReadUp(int chunk, Raw& raw) {
    Await(at_, true);
    if (chunk + flight_ < place_.chunks) {
      const int ahead = at_ + flight_;
      Fill(chunk + flight_, ahead >= held_ ? ahead - held_ : ahead, true);
    }
    Read(chunk, at_, raw);
    at_ = at_ + 1 == held_ ? 0 : at_ + 1;
  }

  /// The next chunk on the way down.
  __device__ void ReadDown(int chunk, Raw& raw) {
    const int lost = place_.chunks - held_;
    at_ = at_ == 0 ? held_ - 1 : at_ - 1;
    Await(at_, chunk < lost);
    const int ahead = chunk - flight_;
    if (ahead >= 0 && ahead < lost) {
      const int slot = at_ - flight_;
      Fill(ahead, slot < 0 ? slot + held_ : slot, false);
    }
    Read(chunk, at_, raw);
  }

  /// Any chunk, from global memory.
  __device__ void Load(int chunk, Raw& raw) const {
    const int channel = place_.Channel(grid_);
    const int64_t row = place_.Row(grid_, chunk);
    if (channel >= grid_.channels) return;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (row + u * place_.lane_rows >= grid_.rows) continue;
      const int64_t offset = (row + u * place_.lane_rows) * grid_.channels + channel;
#pragma unroll
      for (int t = 0; t < kTensors; ++t) raw[t][u] = LoadQuad<X>(tensors_[t] + offset, wide_);
    }
  }

 private:
  __device__ void Await(int slot, bool arrives) {
    if (!kBulk) return;
    if (arrives) {
      Wait(&full_[slot], parities_ >> slot & 1U);
      parities_ ^= 1U << slot;
    }
    __syncwarp();
  }

  __device__ void Read(int chunk, int slot, Raw& raw) const {
    if (kBulk) {
      const QuadOf<X>* from =
          reinterpret_cast<const QuadOf<X>*>(data_ + slot * kTensors * kBoxBytes) + place_.lane;
#pragma unroll
      for (int t = 0; t < kTensors; ++t) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) raw[t][u] = from[(t * kUnroll + u) * kWarpThreads];
      }
      return;
    }
    Load(chunk, raw);
  }

  /// `upwards`: the chunk is read on the way up.
  __device__ void Fill(int chunk, int slot, bool upwards) {
    if (!kBulk || place_.lane != 0) return;
    const int lost = place_.chunks - held_;
    const bool keep = upwards && chunk < lost && chunk >= lost - grid_.wanted;
    const int channel = place_.StripChannel(grid_);
    const int row = (place_.first_chunk + chunk * place_.stride) * grid_.chunk_rows;
    ArriveExpecting(&full_[slot], kTensors * kBoxBytes);
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
      BulkCopy(data_ + (slot * kTensors + t) * kBoxBytes, *maps_[t], channel, row, &full_[slot],
               keep ? keep_ : pass_);
    }
  }

  const RowsGrid& grid_;
  const RowsPlace& place_;
  const RowsTensorMap* maps_[kTensors];
  const StorageOf<X>* tensors_[kTensors];
  uint64_t* full_;
  unsigned char* data_;
  uint64_t keep_ = 0;
  uint64_t pass_ = 0;
  int held_;
  int flight_;
  int at_ = 0;
  uint32_t parities_ = 0;
  bool wide_;
};

}  // namespace norm_device
