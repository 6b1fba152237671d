// Groups of warps that share rows, and how their sums of a row meet.
#pragma once

#include <cstdint>

#include "primitives/row_reduce.cuh"
#include "row_norm/row_norm_backward_ring.cuh"
#include "row_norm/row_norm_backward_rows.cuh"

namespace norm_device {

/// Warps that share rows. Named barriers: one for the turns of each group, one for its warps. The
/// block's own, 0, is that of the first group's turns: its last turn is over before any group ends.
struct WarpGroup {
  int index;  // in the block
  int warps;
  int warp;  // this one

  __device__ int threads() const { return warps * kWarpThreads; }
  __device__ void Sync() const {
    asm volatile("bar.sync %0, %1;" ::"r"(kMaxGroups + index), "r"(threads()) : "memory");
  }
  /// Returns when another group has handed over to this one.
  __device__ void AwaitTurn() const {
    asm volatile("bar.sync %0, %1;" ::"r"(index), "r"(2 * threads()) : "memory");
  }
  __device__ void HandOver(int to_group) const {
    asm volatile("bar.arrive %0, %1;" ::"r"(to_group), "r"(2 * threads()) : "memory");
  }
};

/// For CarefulRow. `parts`: 3 for every warp of the block.
struct WarpGroupSums {
  WarpGroup group;
  double* parts;

  __device__ void Sum(double (&sums)[3]) const {
    LaneSum<kWarpThreads>(sums);
    double* own = parts + group.index * group.warps * 3;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      if (threadIdx.x % kWarpThreads == 0) own[group.warp * 3 + k] = sums[k];
      sums[k] = 0.0;
    }
    group.Sync();
#pragma unroll 1
    for (int i = 0; i < group.warps; ++i) {
#pragma unroll
      for (int k = 0; k < 3; ++k) sums[k] += own[i * 3 + k];
    }
    group.Sync();
  }
};

/// A thread's sums of one row. f32 LayerNorm: x too, with what rounding lost of it, which tells what
/// rounding left of the mean.
struct GroupSums {
  float gd = 0.0F;
  float g = 0.0F;
  float x = 0.0F;
  float x_lost = 0.0F;
};

/// sum + lost += value, exactly but for the rounding of lost.
__device__ inline void AddExactly(float value, float& sum, float& lost) {
  const float total = sum + value;
  const float taken = total - sum;
  lost += (sum - (total - taken)) + (value - taken);
  sum = total;
}

/// kHasFewRows: of a launch that may have few rows (see kExactMeanRows).
template <typename X, RowKind kKind, bool kHasFewRows = false>
struct GroupExchange {
  static constexpr bool kLayer = kKind == RowKind::kLayer;
  static constexpr bool kExactMean = kLayer && std::is_same_v<X, F32>;
  /// Whether some rows are centred twice.
  static constexpr bool kMayCorrect = kLayer && !kExactMean;
  static constexpr int kValues = kLayer ? 2 : 1;
  static constexpr int kSentValues = kValues + (kMayCorrect ? 1 : 0);

  /// Sums of the warps of each group; those of warps that a group lacks stay zero. `x`: kExactMean; else
  /// [0]: of x - mean in few rows, by warps of the block.
  struct alignas(16) Parts {
    float values[2][kSentValues][kMaxGroups][kMaxGroupWarps];
    double x[2][kExactMean ? kMaxGroups : 1][kExactMean || kHasFewRows ? kMaxGroupWarps : 2];
    double careful[3 * kMaxGroupWarps];

    /// The part that a group's own warps read. All threads of the group, before a barrier of it.
    __device__ void Clear(const WarpGroup& group) {
      const int thread = group.warp * kWarpThreads + static_cast<int>(threadIdx.x) % kWarpThreads;
      if (thread < kMaxGroupWarps) {
#pragma unroll
        for (int turn = 0; turn < 2; ++turn) {
#pragma unroll
          for (int k = 0; k < kSentValues; ++k) values[turn][k][group.index][thread] = 0.0F;
          if constexpr (kExactMean) x[turn][group.index][thread] = 0.0;
        }
      }
    }
  };

  __device__ static void Send(Parts& parts, const WarpGroup& group, const GroupSums& sums,
                              int turn) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    if constexpr (kLayer) {
      // Half the lanes go on with gd, half with g.
      constexpr int kHalf = kWarpThreads / 2;
      const bool low = lane < kHalf;
      const float other = __shfl_xor_sync(kAllLanes, low ? sums.g : sums.gd, kHalf);
      const float sum = LanesSum<kHalf>((low ? sums.gd : sums.g) + other);
      if (lane % kHalf == 0) parts.values[turn][lane / kHalf][group.index][group.warp] = sum;
    } else {
      const float sum = LanesSum<kWarpThreads>(sums.gd);
      if (lane == 0) parts.values[turn][0][group.index][group.warp] = sum;
    }
    if constexpr (kExactMean) {
      double total[1] = {static_cast<double>(sums.x) + static_cast<double>(sums.x_lost)};
      LaneSum<kWarpThreads>(total);
      if (lane == 0) parts.x[turn][group.index][group.warp] = total[0];
    }
  }
  __device__ static void SendDeviation(Parts& parts, const WarpGroup& group, float deviation,
                                       int turn) {
    const float sum = LanesSum<kWarpThreads>(deviation);
    if (threadIdx.x % kWarpThreads == 0) {
      parts.values[turn][kSentValues - 1][group.index][group.warp] = sum;
    }
  }
  __device__ static void SendDeviation(Parts& parts, const WarpGroup& group, double deviation,
                                       int turn) {
    double sum[1] = {deviation};
    LaneSum<kWarpThreads>(sum);
    if (threadIdx.x % kWarpThreads == 0) {
      parts.x[turn][0][group.index * group.warps + group.warp] = sum[0];
    }
  }
  /// After a barrier of the group.
  __device__ static double Deviation(const Parts& parts, const WarpGroup& group, int turn) {
    double total = 0.0;
#pragma unroll 4
    for (int i = 0; i < group.warps; ++i) total += parts.x[turn][0][group.index * group.warps + i];
    return total;
  }
  __device__ static RowTotals<float> Receive(const Parts& parts, const WarpGroup& group,
                                             const GivenStats& stats, int hidden_size,
                                             bool corrected, int turn) {
    RowTotals<float> totals;
    totals.gd = Total(parts.values[turn][0][group.index], group.warps);
    if (kLayer) totals.g = Total(parts.values[turn][kValues - 1][group.index], group.warps);
    if constexpr (kExactMean) {
      const double sum = Total(parts.x[turn][group.index], group.warps);
      totals.d = static_cast<float>(
          fma(-static_cast<double>(hidden_size), static_cast<double>(stats.mean), sum));
    }
    if (kMayCorrect && __builtin_expect(corrected, 0)) {
      totals.d = Total(parts.values[turn][kSentValues - 1][group.index], group.warps);
    }
    return totals;
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffU;

  template <int kLanes>
  __device__ static float LanesSum(float value) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
      value += __shfl_xor_sync(kAllLanes, value, offset);
    return value;
  }
  __device__ static float OfFour(const float* parts) {
    const float4 four = *reinterpret_cast<const float4*>(parts);
    return (four.x + four.y) + (four.z + four.w);
  }
  __device__ static double OfFour(const double* parts) {
    const double2 first = *reinterpret_cast<const double2*>(parts);
    const double2 last = *reinterpret_cast<const double2*>(parts + 2);
    return (first.x + first.y) + (last.x + last.y);
  }
  /// The same bits for any number of zeros at the end.
  template <typename A>
  __device__ static A Total(const A* parts, int warps) {
    A total = OfFour(parts) + OfFour(parts + 4);
    if (warps > 8) total += OfFour(parts + 8) + OfFour(parts + 12);
    return total;
  }
};

}  // namespace norm_device
