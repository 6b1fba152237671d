// BatchNorm inference over planes (NCHW): one elementwise pass over the tensor as a row of granules
// of 16 bytes, or over images, each a row of granules. A block's loads are on their way while it
// takes the numbers of the planes that it meets.
#include "batch_norm/batch_norm_inference.cuh"

namespace norm_device {
namespace {

/// Where a granule's elements lie: the entries of its first elements and of those from `own` on.
struct GranulePlace {
  InferenceEntry a;
  InferenceEntry b;
  uint32_t own;
};

/// `at`: of the granule's first element in the first plane of `entries`.
template <int kElements, bool kWholePlanes>
__device__ __forceinline__ GranulePlace PlaceOf(uint32_t at, const PlaneInferenceParams& p,
                                                const InferenceEntry* entries) {
  GranulePlace place;
  const uint32_t plane = Quotient(at, p.by_spatial);
  place.own = (plane + 1) * p.spatial - at;
  place.a = entries[plane];
  place.b = kWholePlanes ? place.a : entries[place.own < kElements ? plane + 1 : plane];
  return place;
}

/// Writes a block's granules, all of whose planes are direct. The branch of each keeps them one
/// after the other: side by side they would take more registers and be stored later.
template <typename X, bool kWholePlanes, bool kAligned>
__device__ __forceinline__ void WriteGranules(const PlaneInferenceParams& p,
                                              const InferenceEntry* entries, uint32_t start,
                                              uint32_t left, const uint4 (&raw)[kPlaneGranules],
                                              char* destination) {
  constexpr int kElements = WideGranule<X>::kElements;
#pragma unroll
  for (int g = 0; g < kPlaneGranules; ++g) {
    const uint32_t granule = g * kPlaneThreads + threadIdx.x;
    if ((granule + 1) * kElements <= left) {
      const auto [a, b, own] =
          PlaceOf<kElements, kWholePlanes>(start + granule * kElements, p, entries);
      float values[kElements];
      WideGranule<X>::Widen(raw[g], values);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const bool first = kWholePlanes || i == 0 || i < own;
        values[i] = fmaf(values[i] - (first ? a.mean : b.mean), first ? a.factor : b.factor,
                         first ? a.shift : b.shift);
      }
      StoreGranuleWords<X, kAligned>(destination + granule * kRingGranuleBytes,
                                     WideGranule<X>::Narrow(values));
    }
  }
}

/// As above with planes of either form: reads the granules again.
template <typename X, bool kWholePlanes, bool kAligned>
__device__ __forceinline__ void MapGranules(const PlaneInferenceParams& p,
                                            const InferenceEntry* entries, uint32_t start,
                                            uint32_t left, const char* source, char* destination) {
  constexpr int kElements = WideGranule<X>::kElements;
  const uint32_t end = min(left / kElements, kPlaneBlockGranules);
#pragma unroll 1
  for (uint32_t granule = threadIdx.x; granule < end; granule += kPlaneThreads) {
    const auto [a, b, own] =
        PlaceOf<kElements, kWholePlanes>(start + granule * kElements, p, entries);
    const uint32_t offset = granule * kRingGranuleBytes;
    float values[kElements];
    WideGranule<X>::Widen(LoadGranuleWords<X, kAligned>(source + offset), values);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      values[i] = kWholePlanes || i < own ? a.Apply(values[i]) : b.Apply(values[i]);
    }
    StoreGranuleWords<X, kAligned>(destination + offset, WideGranule<X>::Narrow(values));
  }
}

template <typename X, bool kWholePlanes, bool kAligned>
__global__ void __launch_bounds__(kPlaneThreads)
    PlaneInference(const __grid_constant__ PlaneInferenceParams p) {
  constexpr int kElements = WideGranule<X>::kElements;
  constexpr uint32_t kBlockElements = kPlaneBlockGranules * kElements;
  // A plane has at least a granule's elements.
  __shared__ InferenceEntry entries[kPlaneBlockGranules + 2];
  const PlaneInferenceSegment& segment = p.segments[blockIdx.y];
  const uint32_t first = blockIdx.x * kBlockElements;
  if (first >= segment.elements) return;
  const uint32_t left = segment.elements - first;
  const int64_t offset = static_cast<int64_t>(first) * sizeof(StorageOf<X>);
  const char* source = static_cast<const char*>(segment.source) + offset;
  uint4 raw[kPlaneGranules];
  const bool whole_block = left >= kBlockElements;
  if (whole_block) {
#pragma unroll
    for (int g = 0; g < kPlaneGranules; ++g) {
      raw[g] = LoadGranuleWords<X, kAligned>(source +
                                             (g * kPlaneThreads + threadIdx.x) * kRingGranuleBytes);
    }
  } else {
#pragma unroll
    for (int g = 0; g < kPlaneGranules; ++g) {
      const uint32_t granule = g * kPlaneThreads + threadIdx.x;
      if ((granule + 1) * kElements <= left) {
        raw[g] = LoadGranuleWords<X, kAligned>(source + granule * kRingGranuleBytes);
      }
    }
  }

  const uint32_t image = Quotient(first, p.by_image);
  const uint32_t in_image = first - image * p.image;
  const uint32_t first_channel = Quotient(in_image, p.by_spatial);
  const uint32_t plane_begin = first_channel * p.spatial;
  const uint32_t start = in_image - plane_begin;
  const uint32_t planes = Quotient(start + kBlockElements - 1, p.by_spatial) + 1;
  bool direct = true;
  for (uint32_t i = threadIdx.x; i < planes; i += kPlaneThreads) {
    const uint32_t images_on = Quotient(plane_begin + i * p.spatial, p.by_image);
    const uint32_t channel = first_channel + i - images_on * p.channels;
    // rstd is written where a channel's first plane starts.
    const bool starts_here = image + images_on == 0 && (i > 0 || start == 0);
    const InferenceEntry entry = LoadEntry<X>(segment.channels, channel, p.weight_like_x,
                                              segment.channels.rstd != nullptr && starts_here);
    direct = direct && entry.IsDirect();
    entries[i] = entry;
  }
  direct = __syncthreads_and(direct);

  char* destination = static_cast<char*>(segment.destination) + offset;
  if (!direct) {
    MapGranules<X, kWholePlanes, kAligned>(p, entries, start, left, source, destination);
  } else {
    WriteGranules<X, kWholePlanes, kAligned>(p, entries, start, left, raw, destination);
  }
  if (whole_block) return;
  // The last elements of a tensor that is no whole number of granules.
  const uint32_t element = left / kElements * kElements + threadIdx.x;
  if (element < left) {
    const float value = Element<X>::Widen(reinterpret_cast<const StorageOf<X>*>(source)[element]);
    const InferenceEntry& entry = entries[Quotient(start + element, p.by_spatial)];
    reinterpret_cast<StorageOf<X>*>(destination)[element] = Element<X>::Narrow(entry.Apply(value));
  }
}

/// Small planes of images that are whole granules: a block takes the same granules of several
/// images, and a thread its planes' numbers once for all of them.
template <typename X>
__global__ void __launch_bounds__(kImageThreads)
    ImageInference(const __grid_constant__ PlaneInferenceParams p) {
  constexpr int kElements = WideGranule<X>::kElements;
  constexpr int kImages = kImagesOfBlock<sizeof(StorageOf<X>)>;
  constexpr uint32_t kBlockElements = kImageThreads * kElements;
  __shared__ InferenceEntry entries[kImageThreads + 2];
  const PlaneInferenceSegment& segment = p.segments[blockIdx.y];
  const uint32_t images = Quotient(segment.elements, p.by_image);
  const uint32_t turn = p.image_blocks == 1 ? blockIdx.x : Quotient(blockIdx.x, p.by_image_blocks);
  const uint32_t first_image = turn * kImages;
  if (first_image >= images) return;
  const uint32_t first = (blockIdx.x - turn * p.image_blocks) * kBlockElements;
  const uint32_t own_first = first + threadIdx.x * kElements;
  const uint32_t count = own_first < p.image ? min(images - first_image, uint32_t{kImages}) : 0;
  const int64_t step = static_cast<int64_t>(p.image) * sizeof(StorageOf<X>);
  const int64_t offset =
      first_image * step + static_cast<int64_t>(own_first) * sizeof(StorageOf<X>);
  const char* source = static_cast<const char*>(segment.source) + offset;
  uint4 raw[kImages];
  if (count == kImages) {
#pragma unroll
    for (int g = 0; g < kImages; ++g) {
      raw[g] = LoadGranuleWords<X, true>(source + g * step);
    }
  } else {
#pragma unroll
    for (int g = 0; g < kImages; ++g) {
      if (g < count) raw[g] = LoadGranuleWords<X, true>(source + g * step);
    }
  }

  const uint32_t first_channel = Quotient(first, p.by_spatial);
  const uint32_t start = first - first_channel * p.spatial;
  const uint32_t planes =
      min(Quotient(start + kBlockElements - 1, p.by_spatial) + 1, p.channels - first_channel);
  bool direct = true;
  for (uint32_t i = threadIdx.x; i < planes; i += kImageThreads) {
    // rstd is written where a channel's first plane starts.
    const bool starts_here = turn == 0 && (i > 0 || start == 0);
    const InferenceEntry entry = LoadEntry<X>(segment.channels, first_channel + i, p.weight_like_x,
                                              segment.channels.rstd != nullptr && starts_here);
    direct = direct && entry.IsDirect();
    entries[i] = entry;
  }
  direct = __syncthreads_and(direct);
  if (count == 0) return;

  char* destination = static_cast<char*>(segment.destination) + offset;
  const auto [a, b, own] = PlaceOf<kElements, false>(start + threadIdx.x * kElements, p, entries);
  if (!direct) {
#pragma unroll 1
    for (uint32_t g = 0; g < count; ++g) {
      float values[kElements];
      WideGranule<X>::Widen(LoadGranuleWords<X, true>(source + g * step), values);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        values[i] = i < own ? a.Apply(values[i]) : b.Apply(values[i]);
      }
      StoreGranuleWords<X, true>(destination + g * step, WideGranule<X>::Narrow(values));
    }
    return;
  }
  float mean[kElements];
  float factor[kElements];
  float shift[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    mean[i] = i < own ? a.mean : b.mean;
    factor[i] = i < own ? a.factor : b.factor;
    shift[i] = i < own ? a.shift : b.shift;
  }
#pragma unroll
  for (int g = 0; g < kImages; ++g) {
    if (g < count) {
      float values[kElements];
      WideGranule<X>::Widen(raw[g], values);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        values[i] = fmaf(values[i] - mean[i], factor[i], shift[i]);
      }
      StoreGranuleWords<X, true>(destination + g * step, WideGranule<X>::Narrow(values));
    }
  }
}

}  // namespace

template <typename X>
const void* ImageInferenceKernel() {
  return reinterpret_cast<const void*>(&ImageInference<X>);
}

template <typename X>
const void* PlaneInferenceKernel(bool whole_planes, bool aligned) {
  if (!aligned) return reinterpret_cast<const void*>(&PlaneInference<X, false, false>);
  return whole_planes ? reinterpret_cast<const void*>(&PlaneInference<X, true, true>)
                      : reinterpret_cast<const void*>(&PlaneInference<X, false, true>);
}

template const void* PlaneInferenceKernel<F32>(bool, bool);
template const void* PlaneInferenceKernel<F16>(bool, bool);
template const void* PlaneInferenceKernel<BF16>(bool, bool);
template const void* ImageInferenceKernel<F32>();
template const void* ImageInferenceKernel<F16>();
template const void* ImageInferenceKernel<BF16>();

}  // namespace norm_device
