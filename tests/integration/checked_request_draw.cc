#include "tests/integration/checked_request.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/integration/checked_values.h"
#include "tests/reference/batch_norm_reference.h"
#include "tests/reference/row_norm_reference.h"
#include "tests/support/tensor_data.h"

namespace norm::test {

using norm::testing::FormatOf;
using norm::testing::MakeNormal;
using norm::testing::Output;

/// Draws the request and asks the oracle.
class CheckedRequest::Builder {
 public:
  Builder(CheckedRequest* out, uint64_t seed, int64_t max_elements)
      : out_(*out), random_(seed), max_elements_(max_elements) {}

  void Build(uint64_t seed) {
    op_ = static_cast<Op>(Below(kOpCount));
    out_.direction_ = static_cast<Direction>(Below(kDirectionCount));
    dtype_ = static_cast<DType>(Below(kDTypeCount));
    weight_dtype_ = Coin() ? dtype_ : DType::kF32;
    statistics_ = StatisticsDType(dtype_);
    const bool forward = out_.direction_ == Direction::kForward;
    if (op_ == Op::kBatchNorm) {
      DrawChannelShape();
      forward ? BatchForward() : BatchBackward();
    } else {
      DrawRowShape();
      forward ? RowForward() : RowBackward();
    }
    out_.label_ =
        absl::StrCat(OpName(op_), " ", DirectionName(out_.direction_), " ", DTypeName(dtype_), " [",
                     absl::StrJoin(shape_, ","), "] seed ", seed);
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool Coin() { return Below(2) == 0; }
  /// Small numbers more often than large ones.
  int64_t Size(int64_t low, int64_t high) {
    const double exponent = std::uniform_real_distribution<double>(
        std::log(static_cast<double>(low)), std::log(static_cast<double>(high) + 1.0))(random_);
    return std::clamp(static_cast<int64_t>(std::exp(exponent)), low, high);
  }
  std::vector<double> Normal(int64_t count, double shift, double scale, DType dtype) {
    return MakeNormal(count, shift, scale, dtype, random_());
  }
  std::vector<double> Positive(int64_t count) {
    return Rounded(statistics_, Absolute(Normal(count, 2.0, 0.25, statistics_)));
  }

  void DrawRowShape() {
    hidden_ = Size(1, max_elements_ / 4);
    rows_ = Size(1, max_elements_ / hidden_);
    shape_ = {rows_, hidden_};
    normalized_ = {hidden_};
    if (hidden_ % 2 == 0 && Coin()) {
      shape_ = {rows_, hidden_ / 2, 2};
      normalized_ = {hidden_ / 2, 2};
    } else if (Coin()) {
      shape_ = {1, rows_, hidden_};
    }
    leading_.assign(shape_.begin(), shape_.end() - static_cast<std::ptrdiff_t>(normalized_.size()));
    kind_ = op_ == Op::kRmsNorm ? reference::RowKind::kRms : reference::RowKind::kLayer;
    has_weight_ = Below(4) != 0;
    weight_offset_ = op_ == Op::kRmsNorm && has_weight_ && Below(4) == 0 ? 1.0 : 0.0;
    eps_ = Coin() ? 1e-5 : 1e-3;
  }

  template <typename Request>
  void SetRowOp(Request* request) {
    const int dims = static_cast<int>(normalized_.size());
    if (op_ == Op::kRmsNorm) {
      request->mutable_rms_norm()->set_normalized_dims(dims == 1 && Coin() ? 0 : dims);
      request->mutable_rms_norm()->set_eps(eps_);
      request->mutable_rms_norm()->set_weight_offset(weight_offset_);
    } else {
      request->mutable_layer_norm()->set_normalized_dims(dims);
      request->mutable_layer_norm()->set_eps(eps_);
    }
  }

  std::vector<int64_t> ParameterShape() {
    return Coin() ? normalized_ : std::vector<int64_t>{hidden_};
  }

  void Expect(std::string name, Output rule, DType dtype, const std::vector<int64_t>& shape,
              std::vector<double> reference, std::vector<double> scale,
              std::vector<double> floor = {}) {
    out_.expected_.push_back({std::move(name), rule, dtype, shape, std::move(reference),
                              std::move(scale), std::move(floor)});
  }

  void RowForward() {
    norm::v1::NormalizeRequest& request = out_.forward_;
    SetRowOp(&request);
    reference::RowNormProblem problem;
    problem.kind = kind_;
    problem.rows = rows_;
    problem.hidden_size = hidden_;
    problem.eps = eps_;
    problem.weight_offset = weight_offset_;
    problem.format = FormatOf(dtype_);
    problem.x = Normal(rows_ * hidden_, 0.5, 1.5, dtype_);
    Fill(request.mutable_x(), dtype_, shape_, problem.x);
    if (has_weight_) {
      problem.weight = Normal(hidden_, 1.0, 0.25, weight_dtype_);
      Fill(request.mutable_weight(), weight_dtype_, ParameterShape(), problem.weight);
    }
    if (op_ == Op::kLayerNorm && Coin()) {
      problem.bias = Normal(hidden_, 0.0, 0.5, weight_dtype_);
      Fill(request.mutable_bias(), weight_dtype_, ParameterShape(), problem.bias);
    }
    if (Below(3) == 0) {
      problem.residual = Normal(rows_ * hidden_, 0.0, 1.0, dtype_);
      Fill(request.mutable_residual(), dtype_, shape_, problem.residual);
    }
    Output rule = Output::kY;
    if (Below(4) == 0) {
      problem.rounding = reference::RowRounding::kNormalizedFirst;
      rule = Output::kYRoundedFirst;
      const auto rounding = norm::v1::ROUNDING_NORMALIZED_FIRST;
      op_ == Op::kRmsNorm ? request.mutable_rms_norm()->set_rounding(rounding)
                          : request.mutable_layer_norm()->set_rounding(rounding);
    }
    request.set_return_statistics(Coin());
    const reference::RowNormResult want = reference::RowNormForward(problem);
    Expect("y", rule, dtype_, shape_, want.y, want.y_magnitude);
    const std::vector<double>& s = problem.residual.empty() ? problem.x : want.residual_sum;
    if (!problem.residual.empty()) {
      Expect("residual_sum", Output::kY, dtype_, shape_, s, Absolute(s));
    }
    if (!request.return_statistics()) return;
    Expect("rstd", Output::kRstd, statistics_, leading_, want.rstd, want.rstd);
    if (op_ == Op::kLayerNorm) {
      Expect("mean", Output::kMean, statistics_, leading_, want.mean,
             GroupMaxima(s, static_cast<size_t>(rows_), RowOf()));
    }
  }

  std::function<size_t(size_t)> RowOf() const {
    return [hidden = static_cast<size_t>(hidden_)](size_t i) { return i / hidden; };
  }

  void RowBackward() {
    norm::v1::NormalizeBackwardRequest& request = out_.backward_;
    SetRowOp(&request);
    reference::RowNormGradientProblem problem;
    problem.kind = kind_;
    problem.rows = rows_;
    problem.hidden_size = hidden_;
    problem.eps = eps_;
    problem.weight_offset = weight_offset_;
    problem.x = Normal(rows_ * hidden_, 0.5, 1.5, dtype_);
    problem.dy = Normal(rows_ * hidden_, 0.1, 1.0, dtype_);
    Fill(request.mutable_x(), dtype_, shape_, problem.x);
    Fill(request.mutable_dy(), dtype_, shape_, problem.dy);
    DType parameter_dtype = statistics_;
    std::vector<int64_t> parameter_shape = {hidden_};
    if (has_weight_) {
      problem.weight = Normal(hidden_, 1.0, 0.25, weight_dtype_);
      parameter_shape = ParameterShape();
      parameter_dtype = weight_dtype_;
      Fill(request.mutable_weight(), weight_dtype_, parameter_shape, problem.weight);
    }
    if (Coin()) {
      reference::RowNormProblem forward;
      forward.kind = kind_;
      forward.rows = rows_;
      forward.hidden_size = hidden_;
      forward.eps = eps_;
      forward.x = problem.x;
      const reference::RowNormResult saved = reference::RowNormForward(forward);
      Fill(request.mutable_rstd(), statistics_, leading_, saved.rstd);
      if (op_ == Op::kLayerNorm) Fill(request.mutable_mean(), statistics_, leading_, saved.mean);
    }
    if (Below(3) == 0) {
      problem.dresidual_sum = Normal(rows_ * hidden_, 0.0, 1.0, dtype_);
      Fill(request.mutable_dresidual_sum(), dtype_, shape_, problem.dresidual_sum);
    }
    request.set_omit_dweight(Below(4) == 0);
    request.set_has_bias(op_ == Op::kLayerNorm && Coin());
    const reference::RowNormGradients want = reference::RowNormBackward(problem);
    const auto row = RowOf();
    const size_t count = want.dx.size();
    Expect("dx", Output::kDx, dtype_, shape_, want.dx,
           Spread(GroupMaxima(want.dx, static_cast<size_t>(rows_), row), count, row),
           Spread(want.dx_magnitude, count, row));
    if (has_weight_ && !request.omit_dweight()) {
      Expect("dweight", Output::kDParameter, parameter_dtype, parameter_shape, want.dweight,
             want.dweight_magnitude);
    }
    if (request.has_bias()) {
      Expect("dbias", Output::kDParameter, parameter_dtype, parameter_shape, want.dbias,
             want.dbias_magnitude);
    }
  }

  void DrawChannelShape() {
    const int64_t channels = Size(1, max_elements_ / 4);
    const int64_t positions = Size(2, std::max<int64_t>(2, max_elements_ / channels));
    const int64_t batch = Size(1, positions);
    const int64_t spatial = std::max<int64_t>(batch == 1 ? 2 : 1, positions / batch);
    const bool nchw = Coin();
    channel_shape_ = {batch, channels, spatial,
                      nchw ? reference::ChannelLayout::kNchw : reference::ChannelLayout::kNhwc};
    if (spatial == 1) {
      shape_ = {batch, channels};
    } else if (spatial % 2 == 0) {
      shape_ = nchw ? std::vector<int64_t>{batch, channels, spatial / 2, 2}
                    : std::vector<int64_t>{batch, spatial / 2, 2, channels};
    } else {
      shape_ = nchw ? std::vector<int64_t>{batch, channels, spatial}
                    : std::vector<int64_t>{batch, spatial, channels};
    }
    training_ = Coin();
    has_weight_ = Below(4) != 0;
    eps_ = Coin() ? 1e-5 : 1e-3;
  }

  template <typename Request>
  void SetBatchOp(Request* request) {
    norm::v1::BatchNorm* op = request->mutable_batch_norm();
    op->set_layout(channel_shape_.layout == reference::ChannelLayout::kNchw
                       ? norm::v1::BatchNorm::LAYOUT_NCHW
                       : norm::v1::BatchNorm::LAYOUT_NHWC);
    op->set_mode(training_ ? norm::v1::BatchNorm::MODE_TRAINING
                           : norm::v1::BatchNorm::MODE_INFERENCE);
    op->set_eps(eps_);
  }

  reference::StatisticsSource Source() const {
    return training_ ? reference::StatisticsSource::kBatch : reference::StatisticsSource::kRunning;
  }

  void BatchForward() {
    norm::v1::NormalizeRequest& request = out_.forward_;
    SetBatchOp(&request);
    const int64_t channels = channel_shape_.channels;
    const std::vector<int64_t> vector_shape = {channels};
    reference::BatchNormProblem problem;
    problem.shape = channel_shape_;
    problem.statistics = Source();
    problem.eps = eps_;
    problem.momentum = 0.1;
    if (Coin()) {
      problem.momentum = 0.25;
      request.mutable_batch_norm()->set_num_batches_tracked(3);
    }
    problem.x = Normal(channel_shape_.elements(), 0.5, 1.5, dtype_);
    Fill(request.mutable_x(), dtype_, shape_, problem.x);
    if (has_weight_) {
      problem.weight = Normal(channels, 1.0, 0.25, weight_dtype_);
      Fill(request.mutable_weight(), weight_dtype_, vector_shape, problem.weight);
    }
    if (Coin()) {
      problem.bias = Normal(channels, 0.0, 0.5, weight_dtype_);
      Fill(request.mutable_bias(), weight_dtype_, vector_shape, problem.bias);
    }
    if (!training_ || Coin()) {
      problem.running_mean = Normal(channels, 0.25, 0.5, statistics_);
      problem.running_var = Positive(channels);
      Fill(request.mutable_running_mean(), statistics_, vector_shape, problem.running_mean);
      Fill(request.mutable_running_var(), statistics_, vector_shape, problem.running_var);
    }
    request.set_return_statistics(Coin());
    const reference::BatchNormResult want = reference::BatchNormForward(problem);
    Expect("y", Output::kY, dtype_, shape_, want.y, want.y_magnitude);
    if (request.return_statistics()) {
      Expect("rstd", Output::kRstd, statistics_, vector_shape, want.rstd, want.rstd);
      if (training_) {
        Expect("mean", Output::kMean, statistics_, vector_shape, want.mean,
               GroupMaxima(problem.x, static_cast<size_t>(channels), ChannelOf()));
      }
    }
    if (training_ && !problem.running_mean.empty()) {
      Expect("running_mean", Output::kRunning, statistics_, vector_shape, want.new_running_mean,
             AbsoluteSum(problem.running_mean, want.mean));
      Expect("running_var", Output::kRunning, statistics_, vector_shape, want.new_running_var,
             AbsoluteSum(problem.running_var, want.new_running_var));
    }
  }

  std::function<size_t(size_t)> ChannelOf() const {
    return [shape = channel_shape_](size_t i) {
      return static_cast<size_t>(shape.Channel(static_cast<int64_t>(i)));
    };
  }

  void BatchBackward() {
    norm::v1::NormalizeBackwardRequest& request = out_.backward_;
    SetBatchOp(&request);
    const int64_t channels = channel_shape_.channels;
    const std::vector<int64_t> vector_shape = {channels};
    reference::BatchNormGradientProblem problem;
    problem.shape = channel_shape_;
    problem.statistics = Source();
    problem.eps = eps_;
    problem.x = Normal(channel_shape_.elements(), 0.5, 1.5, dtype_);
    problem.dy = Normal(channel_shape_.elements(), 0.1, 1.0, dtype_);
    Fill(request.mutable_x(), dtype_, shape_, problem.x);
    Fill(request.mutable_dy(), dtype_, shape_, problem.dy);
    if (has_weight_) {
      problem.weight = Normal(channels, 1.0, 0.25, weight_dtype_);
      Fill(request.mutable_weight(), weight_dtype_, vector_shape, problem.weight);
    }
    if (!training_) {
      problem.running_mean = Normal(channels, 0.25, 0.5, statistics_);
      problem.running_var = Positive(channels);
      Fill(request.mutable_running_mean(), statistics_, vector_shape, problem.running_mean);
      Fill(request.mutable_running_var(), statistics_, vector_shape, problem.running_var);
    } else if (Coin()) {
      reference::BatchNormProblem forward;
      forward.shape = channel_shape_;
      forward.eps = eps_;
      forward.x = problem.x;
      const reference::BatchNormResult saved = reference::BatchNormForward(forward);
      Fill(request.mutable_mean(), statistics_, vector_shape, saved.mean);
      Fill(request.mutable_rstd(), statistics_, vector_shape, saved.rstd);
    }
    request.set_has_bias(Coin());
    const reference::BatchNormGradients want = reference::BatchNormBackward(problem);
    const auto channel = ChannelOf();
    const size_t count = want.dx.size();
    Expect("dx", Output::kDx, dtype_, shape_, want.dx,
           Spread(GroupMaxima(want.dx, static_cast<size_t>(channels), channel), count, channel),
           Spread(want.dx_magnitude, count, channel));
    const DType parameter_dtype = has_weight_ ? weight_dtype_ : statistics_;
    if (has_weight_) {
      Expect("dweight", Output::kDParameter, parameter_dtype, vector_shape, want.dweight,
             want.dweight_magnitude);
    }
    if (request.has_bias()) {
      Expect("dbias", Output::kDParameter, parameter_dtype, vector_shape, want.dbias,
             want.dbias_magnitude);
    }
  }

  CheckedRequest& out_;
  std::mt19937_64 random_;
  const int64_t max_elements_;
  Op op_ = Op::kRmsNorm;
  DType dtype_ = DType::kF32;
  DType weight_dtype_ = DType::kF32;
  DType statistics_ = DType::kF32;
  std::vector<int64_t> shape_;
  bool has_weight_ = false;
  double eps_ = 0.0;
  // Row ops.
  reference::RowKind kind_ = reference::RowKind::kRms;
  int64_t rows_ = 0;
  int64_t hidden_ = 0;
  double weight_offset_ = 0.0;
  std::vector<int64_t> leading_;
  std::vector<int64_t> normalized_;
  // BatchNorm.
  reference::ChannelShape channel_shape_;
  bool training_ = false;
};

CheckedRequest::CheckedRequest(uint64_t seed, int64_t max_elements) {
  Builder(this, seed, max_elements).Build(seed);
}

}  // namespace norm::test
