// A row that its owner (primitives/row_owner.cuh) holds in registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitives/packed_granule.cuh"

namespace norm_device {

/// Elements of a granule in their compute type.
template <typename X, int V>
struct WideGranule {
  ComputeOf<X> values[V];

  __device__ ComputeOf<X> Wide(int i) const { return values[i]; }

  __device__ WideGranule& operator=(const PackedGranule<X, V>& packed) {
#pragma unroll
    for (int i = 0; i < V; ++i) values[i] = packed.Wide(i);
    return *this;
  }
};

/// A thread's part of a row: kGranules granules of V elements at a fixed distance. As many as fit
/// the registers are held in their compute type, which spares a conversion in each pass over them,
/// unless the owner holds them packed.
/// Elements past the row's end are zero.
template <typename X, int V, int kGranulesOfThread, typename Owner>
struct HeldRow {
  static constexpr int kGranules = kGranulesOfThread;
  static constexpr int kStep = Owner::kGranuleStep * V;
  static constexpr int kElements = kGranules * V;
  static constexpr bool kIsWide = kElements * sizeof(ComputeOf<X>) <= 128 && !Owner::kHoldsPacked;

  std::conditional_t<kIsWide, WideGranule<X, V>, PackedGranule<X, V>> values[kGranules];
  int first;  // column of the first element
  int limit;  // columns from `first` to the row's end

  HeldRow() = default;
  __device__ HeldRow(const Owner& owner, int hidden_size)
      : first(owner.template FirstGranule<kGranules>() * V), limit(hidden_size - first) {}

  __device__ bool Holds(int g) const { return g * kStep < limit; }

  /// The compiler neither keeps wide forms of the values nor the comparisons with the row's end.
  __device__ void Forget() {
    if constexpr (!kIsWide) {
      const uint32_t zero = gridDim.z - 1;  // which the compiler does not know
#pragma unroll
      for (int g = 0; g < kGranules; ++g) {
#pragma unroll
        for (int i = 0; i < PackedGranule<X, V>::kWords; ++i) values[g].words[i] ^= zero;
      }
    }
    asm volatile("" : "+r"(limit));
  }

  /// Calls visit(value, i) for every element, the i-th of this thread.
  template <typename Visit>
  __device__ void ForEach(Visit&& visit) const {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
#pragma unroll
      for (int i = 0; i < V; ++i) visit(values[g].Wide(i), g * V + i);
    }
  }

  /// Calls visit(value - shift, i) alike, zero past the row's end.
  template <typename Visit>
  __device__ void ForEachDeviation(ComputeOf<X> shift, Visit&& visit) const {
#pragma unroll
    for (int g = 0; g < kGranules; ++g) {
      const ComputeOf<X> of_granule = Holds(g) ? shift : ComputeOf<X>(0);
#pragma unroll
      for (int i = 0; i < V; ++i) visit(values[g].Wide(i) - of_granule, g * V + i);
    }
  }
};

/// A row of any size: an even number of elements as HeldRow, and the last one of an odd row as the
/// first thread's extra.
template <typename X, int V, int kGranules, typename Owner>
struct SplitRow {
  using Main = HeldRow<X, V, kGranules, Owner>;
  using Extra = HeldRow<X, 1, 1, Owner>;
  static constexpr int kElements = Main::kElements + 1;
  Main main;
  Extra extra;

  __device__ SplitRow(const Owner& owner, int hidden_size)
      : main(owner, hidden_size / 2 * 2), extra(owner, hidden_size) {
    extra.first = hidden_size - 1;
    extra.limit = owner.IsFirstThread() && hidden_size % 2 != 0 ? 1 : 0;
  }

  __device__ void Forget() {
    main.Forget();
    extra.Forget();
  }

  template <typename Visit>
  __device__ void ForEach(Visit&& visit) const {
    main.ForEach(visit);
    extra.ForEach([&](auto value, int) { visit(value, Main::kGranules * V); });
  }

  template <typename Visit>
  __device__ void ForEachDeviation(ComputeOf<X> shift, Visit&& visit) const {
    main.ForEachDeviation(shift, visit);
    extra.ForEachDeviation(shift, [&](auto value, int) { visit(value, Main::kGranules * V); });
  }
};

/// The elements of a held row read again from memory, one granule at a time: for passes that are
/// seldom, with few registers.
template <typename X, int V, int kGranules, typename Owner>
class ReadAgain {
 public:
  using Row = HeldRow<X, V, kGranules, Owner>;

  __device__ ReadAgain(const Row& row, const StorageOf<X>* source)
      : source_(source + row.first), limit_(row.limit) {}

  template <typename Visit>
  __device__ void ForEach(Visit&& visit) const {
#pragma unroll 1
    for (int column = 0; column < kGranules * Row::kStep && column < limit_; column += Row::kStep) {
      const auto granule = PackedGranule<X, V>::Load(source_ + column, false);
#pragma unroll
      for (int i = 0; i < V; ++i) visit(granule.Wide(i), i);
    }
  }

 private:
  const StorageOf<X>* source_;
  int limit_;
};

template <typename X, int V, int kGranules, typename Owner>
class ReadSplitAgain {
 public:
  __device__ ReadSplitAgain(const SplitRow<X, V, kGranules, Owner>& row, const StorageOf<X>* source)
      : main_(row.main, source), extra_(row.extra, source) {}

  template <typename Visit>
  __device__ void ForEach(Visit&& visit) const {
    main_.ForEach(visit);
    extra_.ForEach(visit);
  }

 private:
  ReadAgain<X, V, kGranules, Owner> main_;
  ReadAgain<X, 1, 1, Owner> extra_;
};

template <typename X, int V, int kGranules, typename Owner>
__device__ auto Again(const HeldRow<X, V, kGranules, Owner>& row, const StorageOf<X>* source) {
  return ReadAgain<X, V, kGranules, Owner>(row, source);
}
template <typename X, int V, int kGranules, typename Owner>
__device__ auto Again(const SplitRow<X, V, kGranules, Owner>& row, const StorageOf<X>* source) {
  return ReadSplitAgain<X, V, kGranules, Owner>(row, source);
}

/// How a row's elements are held, by elements per access: narrow ones as SplitRow, but for the
/// shortest rows (HasExtraElement).
template <typename X, int V, int kElements, typename Owner>
using RowHold =
    std::conditional_t<(V * sizeof(StorageOf<X>) < 16 && Owner::kLanesPerRow > 4),
                       SplitRow<X, V, kElements / V, Owner>, HeldRow<X, V, kElements / V, Owner>>;

}  // namespace norm_device
