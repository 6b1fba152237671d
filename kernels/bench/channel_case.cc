// BatchNorm cases.
#include <algorithm>
#include <utility>

#include "bench/device_case.h"
#include "bench/norm_call.h"
#include "bench/output_checks.h"

namespace norm::bench {
namespace {

/// Values of one channel that one block of the reference takes.
constexpr int64_t kReferenceChunk = 1 << 15;

class ChannelCase : public DeviceCase {
 public:
  ChannelCase(const BenchCase& bench_case, TensorArena& arena, const cuda::Stream& stream)
      : DeviceCase(bench_case, arena, stream) {
    shape_.batch = bench_case.shape[0];
    shape_.channels = bench_case.shape[1];
    shape_.spatial = ElementCount(bench_case) / (shape_.batch * shape_.channels);
    shape_.layout =
        bench_case.layout == BenchLayout::kNhwc ? BatchNormLayout::kNhwc : BatchNormLayout::kNchw;
  }

  Status Prepare(WrittenStatistics statistics) {
    NORM_RETURN_IF_ERROR(TakeTensors(statistics));
    call_ = backward() ? BackwardCall() : ForwardCall();
    NORM_RETURN_IF_ERROR(ValidateCall(call_));
    const size_t bytes = WorkspaceBytes(call_);
    const Result<void*> data = arena_.Take("workspace", static_cast<int64_t>(bytes));
    NORM_RETURN_IF_ERROR(data.status());
    workspace_ = {bytes > 0 ? data.value() : nullptr, bytes};
    return stream_.view().Synchronize();
  }

  Enqueue LibraryCall() const override {
    return [call = call_, workspace = workspace_](cuda::StreamView stream) {
      return EnqueueCall(call, workspace, stream.handle());
    };
  }

  Result<Verdict> Check(const Enqueue& work) override {
    Result<OutputChecks> checks = OutputChecks::Create(arena_, stream_);
    NORM_RETURN_IF_ERROR(checks.status());
    NORM_RETURN_IF_ERROR(PoisonOutputs());
    NORM_RETURN_IF_ERROR(work(stream_.view()));
    Result<norm_device::ChannelReferenceParams> params = Reference();
    NORM_RETURN_IF_ERROR(params.status());
    params.value().checks = checks.value().data();
    if (backward()) {
      NORM_RETURN_IF_ERROR(OnChannels(norm_device::ChannelGradientSums(), params.value()));
    }
    NORM_RETURN_IF_ERROR(
        EnqueueReference(norm_device::CheckChannelElements(), 4096, 1, params.value(), stream_));
    NORM_RETURN_IF_ERROR(PerChannel(norm_device::CheckChannels(), params.value()));
    return checks.value().Read();
  }

 private:
  bool backward() const { return case_.direction == BenchDirection::kBackward; }
  bool inference() const { return case_.direction == BenchDirection::kInference; }
  int64_t channels() const { return shape_.channels; }

  Status TakeTensors(WrittenStatistics written) {
    const int64_t elements = ElementCount(case_);
    const DType statistic = StatisticsDType(case_.dtype);
    Status status;
    const auto assign = [&](norm_device::AnyTensor& to, Result<norm_device::AnyTensor> from) {
      if (!status.ok()) return;
      status = from.status();
      if (from.ok()) to = from.value();
    };
    CaseTensors& t = tensors_;
    assign(t.x, Take("x", case_.dtype, elements, {1, 1.0, 0.25}));
    assign(t.weight, Take("weight", case_.weight_dtype, channels(), {2, 0.25, 1.0}));
    if (backward()) {
      assign(t.dy, Take("dy", case_.dtype, elements, {5, 1.0, 0.125}));
      assign(t.saved_mean, Take("saved_mean", statistic, channels(), {}));
      assign(t.saved_rstd, Take("saved_rstd", statistic, channels(), {}));
      assign(t.dx, TakeOutput("dx", case_.dtype, elements));
      assign(t.dweight, TakeOutput("dweight", case_.weight_dtype, channels()));
      assign(t.dbias, TakeOutput("dbias", case_.weight_dtype, channels()));
      NORM_RETURN_IF_ERROR(status);
      const Result<norm_device::ChannelReferenceParams> reference = Reference();
      NORM_RETURN_IF_ERROR(reference.status());
      NORM_RETURN_IF_ERROR(Store(reference.value().channel_mean, t.saved_mean));
      return Store(reference.value().channel_rstd, t.saved_rstd);
    }
    assign(t.bias, Take("bias", case_.weight_dtype, channels(), {3, 0.5, 0.0}));
    if (inference() || written == WrittenStatistics::kAll) {
      assign(t.running_mean, Take("running_mean", statistic, channels(), {7, 0.25, 0.0}));
      assign(t.running_var, Take("running_var", statistic, channels(), {8, 0.125, 1.0}));
    }
    assign(t.y, TakeOutput("y", case_.dtype, elements));
    if (!inference() && written == WrittenStatistics::kAll) {
      assign(t.mean, TakeOutput("mean", statistic, channels()));
      assign(t.rstd, TakeOutput("rstd", statistic, channels()));
      assign(t.new_running_mean, TakeOutput("new_running_mean", statistic, channels()));
      assign(t.new_running_var, TakeOutput("new_running_var", statistic, channels()));
    }
    return status;
  }

  Status Store(const double* from, const norm_device::AnyTensor& to) {
    return EnqueueReference(norm_device::ConvertKernel(), 256, 1,
                            norm_device::ConvertParams{from, to, channels()}, stream_);
  }

  BatchNormMode mode() const {
    return inference() ? BatchNormMode::kInference : BatchNormMode::kTraining;
  }

  NormCall ForwardCall() const {
    const CaseTensors& t = tensors_;
    BatchNormForwardArgs args;
    args.x = t.x.data;
    args.weight = t.weight.data;
    args.bias = t.bias.data;
    args.running_mean = t.running_mean.data;
    args.running_var = t.running_var.data;
    args.y = t.y.data;
    args.mean = t.mean.data;
    args.rstd = t.rstd.data;
    args.new_running_mean = t.new_running_mean.data;
    args.new_running_var = t.new_running_var.data;
    args.momentum = kMomentum;
    FillCommon(args);
    return args;
  }

  NormCall BackwardCall() const {
    const CaseTensors& t = tensors_;
    BatchNormBackwardArgs args;
    args.dy = t.dy.data;
    args.x = t.x.data;
    args.weight = t.weight.data;
    args.mean = t.saved_mean.data;
    args.rstd = t.saved_rstd.data;
    args.dx = t.dx.data;
    args.dweight = t.dweight.data;
    args.dbias = t.dbias.data;
    FillCommon(args);
    return args;
  }
  template <typename Args>
  void FillCommon(Args& args) const {
    args.shape = shape_;
    args.mode = mode();
    args.dtype = case_.dtype;
    args.weight_dtype = case_.weight_dtype;
    args.eps = kEps;
  }

  /// The reference's parameters, with statistics computed and sums zeroed.
  Result<norm_device::ChannelReferenceParams> Reference() {
    const CaseTensors& t = tensors_;
    norm_device::ChannelReferenceParams params = {};
    params.x = t.x;
    params.weight = t.weight;
    params.bias = t.bias;
    params.running_mean = t.running_mean;
    params.running_var = t.running_var;
    params.dy = t.dy;
    params.y = t.y;
    params.mean = t.mean;
    params.rstd = t.rstd;
    params.new_running_mean = t.new_running_mean;
    params.new_running_var = t.new_running_var;
    params.dx = t.dx;
    params.dweight = t.dweight;
    params.dbias = t.dbias;
    params.batch = shape_.batch;
    params.channels = shape_.channels;
    params.spatial = shape_.spatial;
    params.eps = kEps;
    params.momentum = kMomentum;
    params.channels_last = shape_.layout == BatchNormLayout::kNhwc ? 1 : 0;
    params.training = inference() ? 0 : 1;
    const Result<double*> scratch = TakeZeroed("reference_channels", 8 * channels());
    NORM_RETURN_IF_ERROR(scratch.status());
    params.channel_mean = scratch.value();
    params.channel_m2 = scratch.value() + channels();
    params.channel_rstd = scratch.value() + 2 * channels();
    params.channel_largest = scratch.value() + 3 * channels();
    params.channel_sums = scratch.value() + 4 * channels();
    if (!inference()) {
      NORM_RETURN_IF_ERROR(OnChannels(norm_device::ChannelSumReference(), params));
      NORM_RETURN_IF_ERROR(OnChannels(norm_device::ChannelSquaresReference(), params));
    }
    NORM_RETURN_IF_ERROR(PerChannel(norm_device::ChannelFinishReference(), params));
    return params;
  }

  Status OnChannels(const void* kernel, const norm_device::ChannelReferenceParams& params) {
    const int64_t values = shape_.batch * shape_.spatial;
    const int64_t chunks = std::clamp<int64_t>(values / kReferenceChunk, 1, internal::kMaxBlocksY);
    return EnqueueReference(kernel, channels(), chunks, params, stream_);
  }
  Status PerChannel(const void* kernel, const norm_device::ChannelReferenceParams& params) {
    return EnqueueReference(kernel, (channels() + 255) / 256, 1, params, stream_);
  }

  BatchNormShape shape_;
  NormCall call_;
};

}  // namespace

Result<std::unique_ptr<DeviceCase>> PrepareChannelCase(const BenchCase& bench_case,
                                                       TensorArena& arena,
                                                       const cuda::Stream& stream,
                                                       WrittenStatistics statistics) {
  auto prepared = std::make_unique<ChannelCase>(bench_case, arena, stream);
  NORM_RETURN_IF_ERROR(prepared->Prepare(statistics));
  return std::unique_ptr<DeviceCase>(std::move(prepared));
}

}  // namespace norm::bench
