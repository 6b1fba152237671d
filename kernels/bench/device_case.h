// A case on a device: its tensors, the call that is measured, and the check of what it computes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/cold_timer.h"
#include "bench/device_tensor.h"
#include "bench/suite.h"
#include "bench/tensor_arena.h"
#include "norm/cuda/stream.h"
#include "norm/kernels/result.h"

namespace norm::bench {

/// Device tensors of a case; null where the op has none.
struct CaseTensors {
  // Inputs.
  norm_device::AnyTensor x;
  norm_device::AnyTensor residual;
  norm_device::AnyTensor weight;
  norm_device::AnyTensor bias;
  norm_device::AnyTensor running_mean;
  norm_device::AnyTensor running_var;
  norm_device::AnyTensor dy;
  norm_device::AnyTensor dresidual_sum;
  norm_device::AnyTensor saved_mean;
  norm_device::AnyTensor saved_rstd;
  // Outputs.
  norm_device::AnyTensor y;
  norm_device::AnyTensor residual_sum;
  norm_device::AnyTensor mean;
  norm_device::AnyTensor rstd;
  norm_device::AnyTensor new_running_mean;
  norm_device::AnyTensor new_running_var;
  norm_device::AnyTensor dx;
  norm_device::AnyTensor dweight;
  norm_device::AnyTensor dbias;
  norm_device::AnyTensor row_scale;  // of quantized outputs with a scale a row
};

/// Whether a forward call also writes mean, rstd and running statistics, as training needs them.
enum class WrittenStatistics { kAll, kNone };

/// What a check found.
struct Verdict {
  bool right = false;
  double worst = 0.0;   // the largest error as a share of its tolerance; 0 where all are below half
  std::string message;  // what is wrong, output by output
};

inline constexpr double kEps = 1e-5;
inline constexpr double kMomentum = 0.1;
/// Of f8e4m3 outputs with one scale: 448 times it is past every value of the random inputs.
inline constexpr float kYScale = 0.02f;

/// A case whose inputs are random and whose statistics, where they are inputs, come from the
/// float64 reference.
class DeviceCase {
 public:
  virtual ~DeviceCase() = default;

  /// kUnsupported for a variant this build has no kernel for; kOutOfMemory when it does not fit.
  /// Borrows `arena` and `stream`; the arena's earlier case is void.
  static Result<std::unique_ptr<DeviceCase>> Prepare(
      const BenchCase& bench_case, TensorArena& arena, const cuda::Stream& stream,
      WrittenStatistics statistics = WrittenStatistics::kAll);

  const BenchCase& bench_case() const { return case_; }
  const CaseTensors& tensors() const { return tensors_; }

  /// The library's call.
  virtual Enqueue LibraryCall() const = 0;
  /// Poisons every output and the workspace, runs `work` once and compares every element of every
  /// output with the reference.
  virtual Result<Verdict> Check(const Enqueue& work) = 0;

 protected:
  DeviceCase(const BenchCase& bench_case, TensorArena& arena, const cuda::Stream& stream)
      : case_(bench_case), arena_(arena), stream_(stream) {}

  /// A tensor of `count` elements; `seed` draws scale * normal + offset, 0 leaves it undefined.
  struct Draw {
    uint64_t seed = 0;
    double scale = 1.0;
    double offset = 0.0;
  };
  Result<norm_device::AnyTensor> Take(const char* name, DType dtype, int64_t count, Draw draw);
  Result<norm_device::AnyTensor> TakeOutput(const char* name, DType dtype, int64_t count);
  /// One byte an element.
  Result<norm_device::AnyTensor> TakeQuantizedOutput(const char* name, norm_device::Element element,
                                                     int64_t count);
  /// Zeroed float64 values.
  Result<double*> TakeZeroed(const char* name, int64_t count);
  Status PoisonOutputs() const;

  BenchCase case_;
  CaseTensors tensors_;
  TensorArena& arena_;
  const cuda::Stream& stream_;
  Workspace workspace_;

 private:
  struct Output {
    void* data;
    size_t bytes;
  };
  std::vector<Output> outputs_;
};

/// The two kinds.
Result<std::unique_ptr<DeviceCase>> PrepareRowCase(const BenchCase& bench_case, TensorArena& arena,
                                                   const cuda::Stream& stream,
                                                   WrittenStatistics statistics);
Result<std::unique_ptr<DeviceCase>> PrepareChannelCase(const BenchCase& bench_case,
                                                       TensorArena& arena,
                                                       const cuda::Stream& stream,
                                                       WrittenStatistics statistics);

}  // namespace norm::bench
