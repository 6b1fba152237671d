// BatchNorm inference of channel-last tensors: a block covers a few granules of channels side by
// side over many rows. Its rows are on their way while it takes its channels' numbers, one thread a
// channel; then every thread keeps those of its granule in registers.
#include "batch_norm/batch_norm_inference.cuh"

namespace norm_device {
namespace {

/// kElements channels of a thread: 16 bytes, or one element.
template <typename X, int kElements>
struct RowGranule {
  uint4 words;

  __device__ __forceinline__ void Load(const char* source) {
    words = *reinterpret_cast<const uint4*>(source);
  }
  __device__ __forceinline__ void Store(char* destination) const {
    *reinterpret_cast<uint4*>(destination) = words;
  }
  template <typename Apply>
  __device__ __forceinline__ void Map(Apply&& apply) {
    float values[kElements];
    WideGranule<X>::Widen(words, values);
#pragma unroll
    for (int i = 0; i < kElements; ++i) values[i] = apply(values[i], i);
    words = WideGranule<X>::Narrow(values);
  }
};

template <typename X>
struct RowGranule<X, 1> {
  StorageOf<X> element;

  __device__ __forceinline__ void Load(const char* source) {
    element = *reinterpret_cast<const StorageOf<X>*>(source);
  }
  __device__ __forceinline__ void Store(char* destination) const {
    *reinterpret_cast<StorageOf<X>*>(destination) = element;
  }
  template <typename Apply>
  __device__ __forceinline__ void Map(Apply&& apply) {
    element = Element<X>::Narrow(apply(Element<X>::Widen(element), 0));
  }
};

/// Entries of a block's channels by place in a granule, then by column.
template <typename X, int kElements>
using RowEntries = InferenceEntry[kElements][kRowColumns<sizeof(StorageOf<X>)> + 1];
template <typename X, int kElements, bool kWholeBlock, int kGranules>
__device__ __forceinline__ void LoadRows(const char* source, int64_t step, int rows,
                                         RowGranule<X, kElements> (&granules)[kGranules]) {
#pragma unroll
  for (int g = 0; g < kGranules; ++g) {
    if (kWholeBlock || g < rows) granules[g].Load(source + g * step);
  }
}

/// One granule after the other, as the branch of each has it: side by side they would be stored
/// later.
template <typename X, int kElements, int kGranules>
__device__ __forceinline__ void WriteRows(const RowEntries<X, kElements>& entries, uint32_t column,
                                          char* destination, int64_t step, int rows,
                                          RowGranule<X, kElements> (&granules)[kGranules]) {
  float mean[kElements];
  float factor[kElements];
  float shift[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const InferenceEntry& entry = entries[i][column];
    mean[i] = entry.mean;
    factor[i] = entry.factor;
    shift[i] = entry.shift;
  }
#pragma unroll
  for (int g = 0; g < kGranules; ++g) {
    if (g < rows) {
      granules[g].Map(
          [&](float value, int i) { return fmaf(value - mean[i], factor[i], shift[i]); });
      granules[g].Store(destination + g * step);
    }
  }
}

template <typename X, int kElements, int kGranules>
__global__ void __launch_bounds__(kRowThreads, RowBlocksPerSm(kGranules))
    RowInference(const __grid_constant__ RowInferenceParams p) {
  constexpr int kBytes = kElements * static_cast<int>(sizeof(StorageOf<X>));
  __shared__ RowEntries<X, kElements> entries;
  const uint32_t columns = 1U << p.column_bits;
  const uint32_t column = threadIdx.x & (columns - 1);
  const uint32_t lane = threadIdx.x >> p.column_bits;
  const uint32_t lanes = kRowThreads >> p.column_bits;
  const uint32_t row_block = p.slices == 1 ? blockIdx.x : Quotient(blockIdx.x, p.by_slices);
  const uint32_t first_channel = (blockIdx.x - row_block * p.slices) * columns * kElements;
  const int64_t first_row = static_cast<int64_t>(row_block) * lanes * kGranules;
  const int64_t row_bytes = static_cast<int64_t>(p.channel_count) * sizeof(StorageOf<X>);
  const int64_t offset = first_row * row_bytes + first_channel * sizeof(StorageOf<X>) +
                         (lane * row_bytes + column * kBytes);
  const int64_t step = lanes * row_bytes;
  const bool inside = first_channel + column * kElements < p.channel_count;
  const int64_t rows_left = p.rows - first_row;
  const bool whole_block = rows_left >= lanes * kGranules;
  int rows = 0;
  if (inside && lane < rows_left) {
    rows =
        static_cast<int>(min((rows_left - lane - 1) / lanes + 1, static_cast<int64_t>(kGranules)));
  }
  const char* source = static_cast<const char*>(p.source) + offset;
  RowGranule<X, kElements> granules[kGranules];
  if (whole_block) {
    if (inside) LoadRows<X, kElements, true, kGranules>(source, step, rows, granules);
  } else {
    LoadRows<X, kElements, false, kGranules>(source, step, rows, granules);
  }

  bool direct = true;
  for (uint32_t i = threadIdx.x; i < columns * kElements; i += kRowThreads) {
    const uint32_t channel = first_channel + i;
    if (channel < p.channel_count) {
      const InferenceEntry entry = LoadEntry<X>(p.channels, channel, p.weight_like_x,
                                                p.channels.rstd != nullptr && row_block == 0);
      direct = direct && entry.IsDirect();
      entries[i % kElements][i / kElements] = entry;
    }
  }
  direct = __syncthreads_and(direct);
  if (!inside) return;
  char* destination = static_cast<char*>(p.destination) + offset;
  if (!direct) {
#pragma unroll 1
    for (int g = 0; g < rows; ++g) {
      RowGranule<X, kElements> granule;
      granule.Load(source + g * step);
      granule.Map([&](float value, int i) { return entries[i][column].Apply(value); });
      granule.Store(destination + g * step);
    }
  } else {
    WriteRows<X, kElements, kGranules>(entries, column, destination, step, rows, granules);
  }
}

}  // namespace

template <typename X>
const void* RowInferenceKernel(bool wide, bool tall) {
  constexpr int kWide = WideGranule<X>::kElements;
  constexpr int kGranules = kRowGranules<sizeof(StorageOf<X>)>;
  if constexpr (sizeof(StorageOf<X>) == 2) {
    if (tall) return reinterpret_cast<const void*>(&RowInference<X, kWide, kTallRowGranules>);
  }
  return wide ? reinterpret_cast<const void*>(&RowInference<X, kWide, kGranules>)
              : reinterpret_cast<const void*>(&RowInference<X, 1, kGranules>);
}

template const void* RowInferenceKernel<F32>(bool, bool);
template const void* RowInferenceKernel<F16>(bool, bool);
template const void* RowInferenceKernel<BF16>(bool, bool);

}  // namespace norm_device
