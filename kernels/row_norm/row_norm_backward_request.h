// One backward request on its way to the kernels: plan, scratch and kernel parameters.
#pragma once

#include "dispatch/launch.h"
#include "row_norm/row_norm.h"
#include "row_norm/row_norm_backward_device.h"
#include "row_norm/row_norm_backward_tuning.h"

namespace norm::internal {

/// How backward is divided over launches, and its scratch.
struct BackwardPlan {
  RowBackwardPlan row;
  RowBackwardLaunch launch;
  ColumnPlan columns;  // kStreaming
  bool wants_gradients = false;
  bool finalizes = false;         // a launch of its own adds partial rows up
  bool takes_statistics = false;  // ring kernels: a launch of its own computes them first
  int64_t partials = 0;
  void* dweight_partials = nullptr;
  void* dbias_partials = nullptr;
  void* strip_totals = nullptr;
  norm_device::RowStatistics statistics = {};
  void* workspace = nullptr;
  size_t workspace_bytes = 0;

  size_t partial_bytes() const { return row.UsesRing() ? sizeof(float) : sizeof(double); }
};

/// With a null workspace the parts are null and only the size counts.
BackwardPlan PlanBackward(const RowNormBackwardArgs& args, DeviceTraits device, void* workspace);

/// Whether all tensors of rows and weight begin at multiples of 16 bytes.
bool RowsAligned(const RowNormBackwardArgs& args);

/// Ring kernels: mean and rstd into the workspace, where plan.takes_statistics.
Status LaunchStatistics(const RowNormBackwardArgs& args, const BackwardPlan& plan,
                        DeviceTraits device, StreamHandle stream);

norm_device::RingBackwardParams RingParams(const RowNormBackwardArgs& args,
                                           const BackwardPlan& plan);
norm_device::RingKernel WhichRingKernel(const RowNormBackwardArgs& args, const BackwardPlan& plan,
                                        bool aligned);
/// `dtype`: of x; f64 has no ring kernels.
const void* FindRingKernel(norm_device::BackwardLaunchKind launch, norm_device::RowKind kind,
                           DType dtype, const norm_device::RingKernel& which);

norm_device::FinalizeParams FinalizeParamsOf(const RowNormBackwardArgs& args,
                                             const BackwardPlan& plan);
const void* FindFinalizeKernel(norm_device::BackwardLaunchKind launch, DType weight_dtype,
                               int64_t hidden_size, bool partials_are_f64);
/// Of one request.
LaunchConfig FinalizeLaunch(int64_t hidden_size, RowNormKind kind, bool partials_are_f64,
                            DeviceTraits device);

}  // namespace norm::internal
