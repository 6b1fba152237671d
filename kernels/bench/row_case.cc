// RMSNorm and LayerNorm cases.
#include <algorithm>
#include <utility>

#include "bench/device_case.h"
#include "bench/norm_call.h"
#include "bench/output_checks.h"

namespace norm::bench {
namespace {

constexpr int64_t kMaxReferenceBlocks = 1 << 16;

class RowCase : public DeviceCase {
 public:
  RowCase(const BenchCase& bench_case, TensorArena& arena, const cuda::Stream& stream)
      : DeviceCase(bench_case, arena, stream) {}

  Status Prepare(WrittenStatistics statistics) {
    NORM_RETURN_IF_ERROR(backward() ? PrepareBackward() : PrepareForward(statistics));
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
    Result<norm_device::RowReferenceParams> params = Reference();
    NORM_RETURN_IF_ERROR(params.status());
    params.value().checks = checks.value().data();
    if (backward()) {
      const int64_t columns = (hidden_size() + 255) / 256;
      NORM_RETURN_IF_ERROR(OnRows(norm_device::CheckRowBackward(), params.value()));
      NORM_RETURN_IF_ERROR(EnqueueReference(norm_device::RowColumnSums(), columns,
                                            std::clamp<int64_t>(4096 / columns, 1, rows()),
                                            params.value(), stream_));
      NORM_RETURN_IF_ERROR(
          EnqueueReference(norm_device::CheckRowColumns(), columns, 1, params.value(), stream_));
    } else {
      const bool quantized = format() != OutputFormat::kSameAsInput;
      NORM_RETURN_IF_ERROR(
          OnRows(quantized ? norm_device::CheckRowQuantized() : norm_device::CheckRowForward(),
                 params.value()));
    }
    return checks.value().Read();
  }

 private:
  bool backward() const { return case_.direction == BenchDirection::kBackward; }
  bool centered() const { return case_.op == Op::kLayerNorm; }
  bool residual() const { return case_.variant == Variant::kResidual; }
  int64_t rows() const { return case_.shape[0]; }
  int64_t hidden_size() const { return case_.shape[1]; }
  int64_t elements() const { return rows() * hidden_size(); }
  DType statistics_dtype() const { return StatisticsDType(case_.dtype); }

  static Status Assign(norm_device::AnyTensor& to, Result<norm_device::AnyTensor> from) {
    NORM_RETURN_IF_ERROR(from.status());
    to = from.value();
    return Status();
  }

  Status PrepareInputs() {
    NORM_RETURN_IF_ERROR(Assign(tensors_.x, Take("x", case_.dtype, elements(), {1, 1.0, 0.25})));
    return Assign(tensors_.weight,
                  Take("weight", case_.weight_dtype, hidden_size(), {2, 0.25, 1.0}));
  }

  Status PrepareForward(WrittenStatistics statistics) {
    NORM_RETURN_IF_ERROR(PrepareInputs());
    if (centered()) {
      NORM_RETURN_IF_ERROR(
          Assign(tensors_.bias, Take("bias", case_.weight_dtype, hidden_size(), {3, 0.5, 0.0})));
    }
    if (residual()) {
      NORM_RETURN_IF_ERROR(
          Assign(tensors_.residual, Take("residual", case_.dtype, elements(), {4, 1.0, 0.0})));
      NORM_RETURN_IF_ERROR(
          Assign(tensors_.residual_sum, TakeOutput("residual_sum", case_.dtype, elements())));
    }
    NORM_RETURN_IF_ERROR(TakeY());
    if (statistics == WrittenStatistics::kNone) return Status();
    if (centered()) {
      NORM_RETURN_IF_ERROR(Assign(tensors_.mean, TakeOutput("mean", statistics_dtype(), rows())));
    }
    return Assign(tensors_.rstd, TakeOutput("rstd", statistics_dtype(), rows()));
  }

  OutputFormat format() const {
    switch (case_.variant) {
      case Variant::kFp8:
        return OutputFormat::kF8E4M3;
      case Variant::kFp8Row:
        return OutputFormat::kF8E4M3PerRow;
      case Variant::kInt8:
        return OutputFormat::kInt8PerRow;
      default:
        return OutputFormat::kSameAsInput;
    }
  }

  Status TakeY() {
    if (format() == OutputFormat::kSameAsInput) {
      return Assign(tensors_.y, TakeOutput("y", case_.dtype, elements()));
    }
    NORM_RETURN_IF_ERROR(Assign(
        tensors_.y,
        TakeQuantizedOutput("y",
                            format() == OutputFormat::kInt8PerRow ? norm_device::Element::kInt8
                                                                  : norm_device::Element::kF8E4M3,
                            elements())));
    if (!HasRowScale(format())) return Status();
    return Assign(tensors_.row_scale, TakeOutput("row_scale", DType::kF32, rows()));
  }

  Status PrepareBackward() {
    NORM_RETURN_IF_ERROR(PrepareInputs());
    NORM_RETURN_IF_ERROR(Assign(tensors_.dy, Take("dy", case_.dtype, elements(), {5, 1.0, 0.125})));
    if (residual()) {
      NORM_RETURN_IF_ERROR(
          Assign(tensors_.dresidual_sum, Take("residual", case_.dtype, elements(), {6, 1.0, 0.0})));
    }
    if (centered()) {
      NORM_RETURN_IF_ERROR(
          Assign(tensors_.saved_mean, Take("saved_mean", statistics_dtype(), rows(), {})));
      NORM_RETURN_IF_ERROR(
          Assign(tensors_.dbias, TakeOutput("dbias", case_.weight_dtype, hidden_size())));
    }
    NORM_RETURN_IF_ERROR(
        Assign(tensors_.saved_rstd, Take("saved_rstd", statistics_dtype(), rows(), {})));
    NORM_RETURN_IF_ERROR(Assign(tensors_.dx, TakeOutput("dx", case_.dtype, elements())));
    NORM_RETURN_IF_ERROR(
        Assign(tensors_.dweight, TakeOutput("dweight", case_.weight_dtype, hidden_size())));
    const Result<norm_device::RowReferenceParams> reference = Reference();
    NORM_RETURN_IF_ERROR(reference.status());
    NORM_RETURN_IF_ERROR(Store(reference.value().row_rstd, tensors_.saved_rstd));
    return centered() ? Store(reference.value().row_mean, tensors_.saved_mean) : Status();
  }

  Status Store(const double* from, const norm_device::AnyTensor& to) {
    return EnqueueReference(norm_device::ConvertKernel(), 256, 1,
                            norm_device::ConvertParams{from, to, rows()}, stream_);
  }

  NormCall ForwardCall() const {
    const CaseTensors& t = tensors_;
    if (centered()) {
      LayerNormForwardArgs args;
      args.bias = t.bias.data;
      args.mean = t.mean.data;
      FillForward(args);
      return args;
    }
    RmsNormForwardArgs args;
    FillForward(args);
    return args;
  }
  template <typename Args>
  void FillForward(Args& args) const {
    const CaseTensors& t = tensors_;
    args.x = t.x.data;
    args.residual = t.residual.data;
    args.weight = t.weight.data;
    args.y = t.y.data;
    args.residual_sum = t.residual_sum.data;
    args.rstd = t.rstd.data;
    args.output_format = format();
    args.row_scale = t.row_scale.data;
    if (format() == OutputFormat::kF8E4M3) args.y_scale = kYScale;
    FillSizes(args);
  }

  NormCall BackwardCall() const {
    const CaseTensors& t = tensors_;
    if (centered()) {
      LayerNormBackwardArgs args;
      args.mean = t.saved_mean.data;
      args.dbias = t.dbias.data;
      FillBackward(args);
      return args;
    }
    RmsNormBackwardArgs args;
    FillBackward(args);
    return args;
  }
  template <typename Args>
  void FillBackward(Args& args) const {
    const CaseTensors& t = tensors_;
    args.dy = t.dy.data;
    args.x = t.x.data;
    args.weight = t.weight.data;
    args.rstd = t.saved_rstd.data;
    args.dresidual_sum = t.dresidual_sum.data;
    args.dx = t.dx.data;
    args.dweight = t.dweight.data;
    FillSizes(args);
  }
  template <typename Args>
  void FillSizes(Args& args) const {
    args.rows = rows();
    args.hidden_size = hidden_size();
    args.dtype = case_.dtype;
    args.weight_dtype = case_.weight_dtype;
    args.eps = kEps;
  }

  /// The reference's parameters, with statistics computed and sums zeroed.
  Result<norm_device::RowReferenceParams> Reference() {
    const CaseTensors& t = tensors_;
    norm_device::RowReferenceParams params = {};
    params.x = t.x;
    params.residual = t.residual;
    params.weight = t.weight;
    params.bias = t.bias;
    params.dy = t.dy;
    params.dresidual_sum = t.dresidual_sum;
    params.y = t.y;
    params.residual_sum = t.residual_sum;
    params.mean = t.mean;
    params.rstd = t.rstd;
    params.dx = t.dx;
    params.dweight = t.dweight;
    params.dbias = t.dbias;
    params.row_scale = t.row_scale;
    params.y_scale = kYScale;
    params.rows = rows();
    params.hidden_size = hidden_size();
    params.eps = kEps;
    params.center = centered() ? 1 : 0;
    const Result<double*> statistics = TakeZeroed("reference_rows", 2 * rows());
    NORM_RETURN_IF_ERROR(statistics.status());
    params.row_mean = statistics.value();
    params.row_rstd = statistics.value() + rows();
    const Result<double*> sums = TakeZeroed("reference_columns", 4 * hidden_size());
    NORM_RETURN_IF_ERROR(sums.status());
    params.column_sums = sums.value();
    NORM_RETURN_IF_ERROR(OnRows(norm_device::RowStatisticsReference(), params));
    return params;
  }

  Status OnRows(const void* kernel, const norm_device::RowReferenceParams& params) {
    return EnqueueReference(kernel, std::min(rows(), kMaxReferenceBlocks), 1, params, stream_);
  }

  NormCall call_;
};

}  // namespace

Result<std::unique_ptr<DeviceCase>> PrepareRowCase(const BenchCase& bench_case, TensorArena& arena,
                                                   const cuda::Stream& stream,
                                                   WrittenStatistics statistics) {
  auto prepared = std::make_unique<RowCase>(bench_case, arena, stream);
  NORM_RETURN_IF_ERROR(prepared->Prepare(statistics));
  return std::unique_ptr<DeviceCase>(std::move(prepared));
}

}  // namespace norm::bench
