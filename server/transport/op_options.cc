#include "server/transport/op_options.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/transport/field_error.h"

namespace norm::server {
namespace {

constexpr double kRmsNormEps = 1e-6;
constexpr double kLayerNormEps = 1e-5;
constexpr double kBatchNormEps = 1e-5;
constexpr double kDefaultMomentum = 0.1;

absl::Status ReadEps(const std::string& op, double eps, NormProblem* problem) {
  if (!std::isfinite(eps) || eps < 0) {
    return InvalidField(op + ".eps", absl::StrCat(eps, " must be finite and >= 0"));
  }
  problem->eps = eps;
  return absl::OkStatus();
}

absl::Status ReadNormalizedDims(const std::string& op, int given, int* normalized_dims) {
  if (given < 0) {
    return InvalidField(op + ".normalized_dims", absl::StrCat(given, " must be >= 0"));
  }
  *normalized_dims = given == 0 ? 1 : given;
  return absl::OkStatus();
}

absl::Status ReadRounding(const std::string& op, norm::v1::Rounding given, NormProblem* problem) {
  switch (given) {
    case norm::v1::ROUNDING_ONCE:
      problem->rounding = Rounding::kOnce;
      return absl::OkStatus();
    case norm::v1::ROUNDING_NORMALIZED_FIRST:
      problem->rounding = Rounding::kNormalizedFirst;
      return absl::OkStatus();
    default:
      return InvalidField(op + ".rounding",
                          absl::StrCat(static_cast<int>(given), " is not a known rounding (0, 1)"));
  }
}

absl::Status ReadRmsNorm(const norm::v1::RmsNorm& options, NormProblem* problem,
                         int* normalized_dims) {
  problem->op = Op::kRmsNorm;
  absl::Status status = ReadNormalizedDims("rms_norm", options.normalized_dims(), normalized_dims);
  status.Update(ReadEps("rms_norm", options.has_eps() ? options.eps() : kRmsNormEps, problem));
  if (!std::isfinite(options.weight_offset())) {
    status.Update(InvalidField("rms_norm.weight_offset",
                               absl::StrCat(options.weight_offset(), " must be finite")));
  }
  problem->weight_offset = options.weight_offset();
  status.Update(ReadRounding("rms_norm", options.rounding(), problem));
  return status;
}

absl::Status ReadLayerNorm(const norm::v1::LayerNorm& options, NormProblem* problem,
                           int* normalized_dims) {
  problem->op = Op::kLayerNorm;
  absl::Status status =
      ReadNormalizedDims("layer_norm", options.normalized_dims(), normalized_dims);
  status.Update(ReadEps("layer_norm", options.has_eps() ? options.eps() : kLayerNormEps, problem));
  status.Update(ReadRounding("layer_norm", options.rounding(), problem));
  return status;
}

absl::Status ReadMomentum(const norm::v1::BatchNorm& options, NormProblem* problem) {
  switch (options.average_case()) {
    case norm::v1::BatchNorm::kMomentum:
      // Written so that NaN fails too.
      if (!(options.momentum() >= 0.0 && options.momentum() <= 1.0)) {
        return InvalidField("batch_norm.momentum",
                            absl::StrCat(options.momentum(), " must be in [0, 1]"));
      }
      problem->momentum = options.momentum();
      return absl::OkStatus();
    case norm::v1::BatchNorm::kNumBatchesTracked:
      if (options.num_batches_tracked() < 0) {
        return InvalidField("batch_norm.num_batches_tracked",
                            absl::StrCat(options.num_batches_tracked(), " must be >= 0"));
      }
      problem->momentum = 1.0 / (static_cast<double>(options.num_batches_tracked()) + 1.0);
      return absl::OkStatus();
    case norm::v1::BatchNorm::AVERAGE_NOT_SET:
      break;
  }
  problem->momentum = kDefaultMomentum;
  return absl::OkStatus();
}

absl::Status ReadBatchNorm(const norm::v1::BatchNorm& options, NormProblem* problem) {
  problem->op = Op::kBatchNorm;
  switch (options.layout()) {
    case norm::v1::BatchNorm::LAYOUT_NCHW:
      problem->batch_norm_shape.layout = BatchNormLayout::kNchw;
      break;
    case norm::v1::BatchNorm::LAYOUT_NHWC:
      problem->batch_norm_shape.layout = BatchNormLayout::kNhwc;
      break;
    default:
      return InvalidField("batch_norm.layout",
                          absl::StrCat(static_cast<int>(options.layout()),
                                       " is not a known layout (NCHW = 0, NHWC = 1)"));
  }
  switch (options.mode()) {
    case norm::v1::BatchNorm::MODE_TRAINING:
      problem->batch_norm_mode = BatchNormMode::kTraining;
      break;
    case norm::v1::BatchNorm::MODE_INFERENCE:
      problem->batch_norm_mode = BatchNormMode::kInference;
      break;
    default:
      return InvalidField(
          "batch_norm.mode",
          absl::StrCat(static_cast<int>(options.mode()), " must be training (1) or inference (2)"));
  }
  absl::Status status =
      ReadEps("batch_norm", options.has_eps() ? options.eps() : kBatchNormEps, problem);
  status.Update(ReadMomentum(options, problem));
  return status;
}

template <typename Request>
absl::Status ReadAnyOp(const Request& request, NormProblem* problem, int* normalized_dims) {
  switch (request.op_case()) {
    case Request::kRmsNorm:
      return ReadRmsNorm(request.rms_norm(), problem, normalized_dims);
    case Request::kLayerNorm:
      return ReadLayerNorm(request.layer_norm(), problem, normalized_dims);
    case Request::kBatchNorm:
      return ReadBatchNorm(request.batch_norm(), problem);
    case Request::OP_NOT_SET:
      break;
  }
  return InvalidField("op", "is missing: one of rms_norm, layer_norm, batch_norm must be set");
}

}  // namespace

absl::Status ReadOpOptions(const norm::v1::NormalizeRequest& request, NormProblem* problem,
                           int* normalized_dims) {
  return ReadAnyOp(request, problem, normalized_dims);
}

absl::Status ReadOpOptions(const norm::v1::NormalizeBackwardRequest& request, NormProblem* problem,
                           int* normalized_dims) {
  return ReadAnyOp(request, problem, normalized_dims);
}

}  // namespace norm::server
