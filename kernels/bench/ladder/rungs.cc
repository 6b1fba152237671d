#include "bench/ladder/rungs.h"

#include <algorithm>

#include "bench/ladder/rungs_device.h"
#include "dispatch/launch.h"

namespace norm::bench {
namespace {

using norm_device::AnyTensor;
using norm_device::ChannelRungParams;
using norm_device::RowRungParams;

float* Floats(const AnyTensor& tensor) { return static_cast<float*>(tensor.data); }

int64_t Ceil(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

internal::LaunchConfig Grid(int64_t blocks_x, int threads, int64_t blocks_y = 1) {
  internal::LaunchConfig config;
  config.blocks_x = blocks_x;
  config.blocks_y = blocks_y;
  config.threads_x = threads;
  return config;
}

/// A kernel with its grid.
struct Step {
  const void* kernel = nullptr;
  internal::LaunchConfig config;
};

template <typename Params>
Enqueue Steps(std::vector<Step> steps, const Params& params) {
  return [steps = std::move(steps), params](cuda::StreamView stream) {
    for (const Step& step : steps) {
      NORM_RETURN_IF_ERROR(internal::Launch(step.kernel, step.config, params, stream.handle()));
    }
    return Status();
  };
}

// --- Row rungs ---

RowRungParams RowParams(const DeviceCase& device_case) {
  const CaseTensors& t = device_case.tensors();
  RowRungParams params = {};
  params.x = Floats(t.x);
  params.residual = Floats(t.residual);
  params.weight = Floats(t.weight);
  params.bias = Floats(t.bias);
  params.y = Floats(t.y);
  params.residual_sum = Floats(t.residual_sum);
  params.rows = device_case.bench_case().shape[0];
  params.hidden_size = device_case.bench_case().shape[1];
  params.eps = static_cast<float>(kEps);
  return params;
}

bool AnyShape(const BenchCase&) { return true; }

using RowSteps = std::vector<Step> (*)(const RowRungParams&);

/// A rung whose work needs nothing but the row parameters.
Rung RowRung(std::string id, std::string name, std::string changed, Op op, RowSteps steps) {
  Rung rung;
  rung.id = std::move(id);
  rung.name = std::move(name);
  rung.changed = std::move(changed);
  rung.op = op;
  rung.supports = AnyShape;
  rung.work = [steps](const DeviceCase& device_case, TensorArena&) -> Result<Enqueue> {
    const RowRungParams params = RowParams(device_case);
    return Steps(steps(params), params);
  };
  return rung;
}

/// Threads and vectors a thread that keep a row in registers.
struct RegisterShape {
  int threads = 0;
  int vectors_per_thread = 0;
};
RegisterShape RegistersFor(int64_t hidden_size) {
  const int64_t vectors = hidden_size / 4;
  RegisterShape shape;
  shape.threads = static_cast<int>(std::clamp<int64_t>(Ceil(vectors, 32) * 32, 32, 256));
  shape.vectors_per_thread = static_cast<int>(Ceil(vectors, shape.threads));
  return shape;
}
bool FitsRegisters(const BenchCase& bench_case) {
  const int64_t hidden_size = bench_case.shape[1];
  return hidden_size % 4 == 0 &&
         RegistersFor(hidden_size).vectors_per_thread <= norm_device::kMaxVectorsPerThread;
}
Step RegisterStep(const RowRungParams& p) {
  const RegisterShape shape = RegistersFor(p.hidden_size);
  return {norm_device::LayerRegisters(shape.vectors_per_thread), Grid(p.rows, shape.threads)};
}

void AddRmsRungs(std::vector<Rung>& rungs) {
  rungs.push_back(RowRung("R0", "thread per row", "direct translation of the serial loop",
                          Op::kRmsNorm, [](const RowRungParams& p) -> std::vector<Step> {
                            return {{norm_device::RmsThreadPerRow(), Grid(Ceil(p.rows, 512), 512)}};
                          }));
  rungs.push_back(RowRung("R1", "warp per row", "32 lanes read neighbours: coalesced; shuffles sum",
                          Op::kRmsNorm, [](const RowRungParams& p) -> std::vector<Step> {
                            return {{norm_device::RmsWarpPerRow(), Grid(Ceil(p.rows, 8), 256)}};
                          }));
  rungs.push_back(
      RowRung("R2", "block per row", "256 threads a row; shared-memory tree", Op::kRmsNorm,
              [](const RowRungParams& p) -> std::vector<Step> {
                return {{norm_device::RmsBlockPerRow(), Grid(p.rows, norm_device::kTreeThreads)}};
              }));
}

void AddLayerRungs(std::vector<Rung>& rungs) {
  rungs.push_back(RowRung("L1", "block of one thread per row",
                          "direct translation of the serial loop", Op::kLayerNorm,
                          [](const RowRungParams& p) -> std::vector<Step> {
                            return {{norm_device::LayerThreadPerRow(), Grid(p.rows, 1)}};
                          }));
  rungs.push_back(
      RowRung("L2", "shared memory", "256 threads a row; tree of 8 barriers", Op::kLayerNorm,
              [](const RowRungParams& p) -> std::vector<Step> {
                return {{norm_device::LayerSharedTree(), Grid(p.rows, norm_device::kTreeThreads)}};
              }));
  rungs.push_back(RowRung("L3", "warp shuffle", "shuffles in a warp, one slot a warp, one barrier",
                          Op::kLayerNorm, [](const RowRungParams& p) -> std::vector<Step> {
                            return {{norm_device::LayerWarpShuffle(), Grid(p.rows, 256)}};
                          }));
  rungs.push_back(RowRung("L4", "float4", "16-byte loads and stores", Op::kLayerNorm,
                          [](const RowRungParams& p) -> std::vector<Step> {
                            return {{norm_device::LayerVector(), Grid(p.rows, 256)}};
                          }));
  rungs.push_back(RowRung(
      "L5", "register cache", "x is loaded once; the second pass reads registers", Op::kLayerNorm,
      [](const RowRungParams& p) -> std::vector<Step> { return {RegisterStep(p)}; }));
  rungs.back().supports = FitsRegisters;

  Rung separate = RowRung("L5", "add, then L5", "the residual added by a kernel of its own",
                          Op::kLayerNorm, nullptr);
  separate.variant = Variant::kResidual;
  separate.supports = FitsRegisters;
  separate.work = [](const DeviceCase& device_case, TensorArena&) -> Result<Enqueue> {
    const RowRungParams add = RowParams(device_case);
    RowRungParams normalize = add;
    normalize.x = add.residual_sum;
    const Step add_step = {norm_device::AddResidual(),
                           Grid(Ceil(add.rows * add.hidden_size, 4 * 256), 256)};
    const Step normalize_step = RegisterStep(normalize);
    return Enqueue([=](cuda::StreamView stream) {
      NORM_RETURN_IF_ERROR(
          internal::Launch(add_step.kernel, add_step.config, add, stream.handle()));
      return internal::Launch(normalize_step.kernel, normalize_step.config, normalize,
                              stream.handle());
    });
  };
  rungs.push_back(separate);

  rungs.push_back(RowRung("L6", "fused residual", "the residual added in the same kernel",
                          Op::kLayerNorm, [](const RowRungParams& p) -> std::vector<Step> {
                            const RegisterShape shape = RegistersFor(p.hidden_size);
                            return {{norm_device::LayerFusedResidual(shape.vectors_per_thread),
                                     Grid(p.rows, shape.threads)}};
                          }));
  rungs.back().variant = Variant::kResidual;
  rungs.back().supports = FitsRegisters;
}

// --- Channel rungs ---

constexpr int kChannelThreads = 256;
constexpr int kBlocksPerSm = 4;  // of a cooperative launch; as the kernel's launch bounds allow

using ChannelSteps = std::vector<Step> (*)(const ChannelRungParams&, int sm_count);

Result<ChannelRungParams> ChannelParams(const DeviceCase& device_case, TensorArena& arena,
                                        int sm_count) {
  const CaseTensors& t = device_case.tensors();
  const BenchCase& bench_case = device_case.bench_case();
  ChannelRungParams params = {};
  params.x = Floats(t.x);
  params.dy = Floats(t.dy);
  params.weight = Floats(t.weight);
  params.bias = Floats(t.bias);
  params.saved_mean = Floats(t.saved_mean);
  params.saved_rstd = Floats(t.saved_rstd);
  params.y = Floats(t.y);
  params.dx = Floats(t.dx);
  params.dweight = Floats(t.dweight);
  params.dbias = Floats(t.dbias);
  params.batch = bench_case.shape[0];
  params.channels = bench_case.shape[1];
  params.spatial = ElementCount(bench_case) / (params.batch * params.channels);
  // Chunks of whole images, 8 blocks a multiprocessor in all.
  const int64_t wanted = std::clamp<int64_t>(Ceil(8 * sm_count, params.channels), 1, params.batch);
  params.images_per_chunk = Ceil(params.batch, wanted);
  params.chunks = Ceil(params.batch, params.images_per_chunk);
  params.eps = static_cast<float>(kEps);
  const int64_t floats = params.channels * params.chunks * norm_device::kPartialFloats;
  const Result<void*> scratch = arena.Take("rung_scratch", floats * 4);
  NORM_RETURN_IF_ERROR(scratch.status());
  params.scratch = static_cast<float*>(scratch.value());
  return params;
}

Rung ChannelRung(std::string name, std::string changed, BenchDirection direction,
                 ChannelSteps steps) {
  Rung rung;
  rung.id = "B6";
  rung.name = std::move(name);
  rung.changed = std::move(changed);
  rung.op = Op::kBatchNorm;
  rung.direction = direction;
  rung.supports = [](const BenchCase& bench_case) {
    return bench_case.layout != BenchLayout::kNhwc && bench_case.shape[1] <= internal::kMaxBlocksY;
  };
  rung.work = [steps](const DeviceCase& device_case, TensorArena& arena) -> Result<Enqueue> {
    const Result<internal::DeviceTraits> traits = internal::CurrentDeviceTraits();
    NORM_RETURN_IF_ERROR(traits.status());
    const int sm_count = traits.value().sm_count;
    const Result<ChannelRungParams> params = ChannelParams(device_case, arena, sm_count);
    NORM_RETURN_IF_ERROR(params.status());
    return Steps(steps(params.value(), sm_count), params.value());
  };
  return rung;
}

internal::LaunchConfig PerElement(const ChannelRungParams& p) {
  return Grid(Ceil(p.batch * p.channels * p.spatial, kChannelThreads), kChannelThreads);
}

void AddBatchRungs(std::vector<Rung>& rungs) {
  rungs.push_back(ChannelRung(
      "reduce, then normalize", "a block reduces a channel, then a thread normalizes a value",
      BenchDirection::kForward, [](const ChannelRungParams& p, int) -> std::vector<Step> {
        return {{norm_device::BatchReduce(), Grid(p.channels, kChannelThreads)},
                {norm_device::BatchNormalize(), PerElement(p)}};
      }));
  rungs.push_back(ChannelRung(
      "fused, vectorized", "one kernel, a block of 1024 a channel, 16-byte accesses",
      BenchDirection::kForward, [](const ChannelRungParams& p, int) -> std::vector<Step> {
        return {{norm_device::BatchFused(), Grid(p.channels, 1024)}};
      }));
  rungs.push_back(ChannelRung(
      "Welford in stages", "many blocks a channel; partial moments merged by count",
      BenchDirection::kForward, [](const ChannelRungParams& p, int) -> std::vector<Step> {
        const internal::LaunchConfig grid = Grid(p.chunks, kChannelThreads, p.channels);
        return {{norm_device::BatchPartialMoments(), grid},
                {norm_device::BatchNormalizeChunk(), grid}};
      }));
  rungs.push_back(ChannelRung(
      "two passes", "a block sums a channel, then a thread computes a value of dx",
      BenchDirection::kBackward, [](const ChannelRungParams& p, int) -> std::vector<Step> {
        return {{norm_device::BatchGradientReduce(), Grid(p.channels, kChannelThreads)},
                {norm_device::BatchGradientApply(), PerElement(p)}};
      }));
  rungs.push_back(ChannelRung(
      "one kernel", "both passes in one launch, a block of 1024 a channel, 16-byte accesses",
      BenchDirection::kBackward, [](const ChannelRungParams& p, int) -> std::vector<Step> {
        return {{norm_device::BatchGradientFused(), Grid(p.channels, 1024)}};
      }));
  rungs.push_back(ChannelRung(
      "two phases", "many blocks a channel, a grid barrier between the phases of one launch",
      BenchDirection::kBackward, [](const ChannelRungParams& p, int sm_count) -> std::vector<Step> {
        internal::LaunchConfig grid = Grid(
            std::min<int64_t>(p.channels * p.chunks, kBlocksPerSm * sm_count), kChannelThreads);
        grid.cooperative = true;
        return {{norm_device::BatchGradientPhases(), grid}};
      }));
}

}  // namespace

const std::vector<Rung>& AllRungs() {
  static const std::vector<Rung> rungs = [] {
    std::vector<Rung> all;
    AddRmsRungs(all);
    AddLayerRungs(all);
    AddBatchRungs(all);
    return all;
  }();
  return rungs;
}

std::vector<BenchCase> LadderCases() {
  const auto row = [](Op op, int64_t rows, int64_t hidden_size, Variant variant = Variant::kPlain) {
    BenchCase bench_case;
    bench_case.op = op;
    bench_case.shape = {rows, hidden_size};
    bench_case.variant = variant;
    return bench_case;
  };
  BenchCase batch;
  batch.op = Op::kBatchNorm;
  batch.shape = {64, 64, 112, 112};
  batch.layout = BenchLayout::kNchw;
  BenchCase batch_backward = batch;
  batch_backward.direction = BenchDirection::kBackward;
  return {row(Op::kRmsNorm, 8 * 1024, 4096),
          row(Op::kRmsNorm, 64 * 1024, 2048),
          row(Op::kRmsNorm, 64 * 1024, 4096),
          row(Op::kLayerNorm, 65536, 1024),
          row(Op::kLayerNorm, 65536, 256),
          row(Op::kLayerNorm, 65536, 1024, Variant::kResidual),
          batch,
          batch_backward};
}

bool Fits(const Rung& rung, const BenchCase& bench_case) {
  return rung.op == bench_case.op && rung.direction == bench_case.direction &&
         rung.variant == bench_case.variant && bench_case.dtype == DType::kF32 &&
         rung.supports(bench_case);
}

}  // namespace norm::bench
