// The kernels of LayerNorm rows in a block of one ElementPair.
#pragma once

#include "row_norm/row_norm_block_device.h"
#include "row_norm/row_norm_forward_block.cuh"

namespace norm_device {

/// The kernel for a plan's threads, which are kThreads or more.
template <typename Pair, RowMethod kMethod, int kThreads>
const void* BlockRowsKernelFrom(int threads) {
  constexpr BlockRows kRows =
      BlockRowsOf(kMethod, static_cast<int>(sizeof(StorageOf<typename Pair::Activation>)),
                  static_cast<int>(sizeof(StorageOf<typename Pair::Weight>)), kThreads);
  if constexpr (kRows.rows > 0) {
    if (threads <= kRows.threads) {
      return reinterpret_cast<const void*>(
          &RowForwardBlock<Pair, kMethod, kRows.rows, kRows.threads, kRows.blocks, kRows.fetch>);
    }
  } else if (threads == kThreads) {
    return nullptr;
  }
  constexpr int kNext = (kRows.rows > 0 ? kRows.threads : kThreads) + kWarpThreads;
  if constexpr (kNext <= kMaxBlockRowThreads) {
    return BlockRowsKernelFrom<Pair, kMethod, kNext>(threads);
  }
  return nullptr;
}

template <typename Pair>
const void* BlockRowsKernel(RowMethod method, int threads) {
  return method == RowMethod::kBlock
             ? BlockRowsKernelFrom<Pair, RowMethod::kBlock, kWarpThreads>(threads)
             : BlockRowsKernelFrom<Pair, RowMethod::kBlockLong, kWarpThreads>(threads);
}

}  // namespace norm_device
