#include "client/normctl/prepared_case.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace norm::normctl {
namespace {

/// Digits of a set's number, in base 128, take turns in its weights.
constexpr int64_t kBase = 128;

template <typename Value>
absl::StatusOr<client::Tensor> Fill(DType dtype, const std::vector<int64_t>& shape, Value value) {
  absl::StatusOr<client::Tensor> tensor = client::Tensor::Allocate(DType::kF32, shape);
  if (!tensor.ok()) return tensor;
  auto* values = reinterpret_cast<float*>(tensor->mutable_bytes().data());
  for (int64_t i = 0; i < tensor->elements(); ++i) values[i] = value(i);
  return client::Cast(*tensor, dtype);
}

/// In [0.5, 1), exact in every dtype.
float ParameterValue(int64_t element, int64_t set) {
  const int64_t digit = element % 2 == 0 ? set % kBase : set / kBase;
  return 0.5F + static_cast<float>((element + digit) % kBase) / (2 * kBase);
}

class Builder {
 public:
  explicit Builder(const LoadCase& load_case) : case_(load_case) {}

  absl::Status AddShared() {
    const auto x = [](int64_t i) { return static_cast<float>(i % 97) - 48.0F; };
    const auto other = [](int64_t i) { return static_cast<float>(i % 31) / 16.0F - 1.0F; };
    absl::Status status = Add("x", Fill(case_.dtype, case_.shape, x));
    if (backward()) status.Update(Add("dy", Fill(case_.dtype, case_.shape, other)));
    if (case_.residual) status.Update(Add("residual", Fill(case_.dtype, case_.shape, other)));
    const bool inference = case_.op == Op::kBatchNorm && case_.mode == BatchNormMode::kInference;
    if (!case_.running && !inference) return status;
    const DType statistics = case_.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const std::vector<int64_t> channels = {case_.parameter_size()};
    status.Update(Add("running_mean", Fill(statistics, channels, other)));
    status.Update(Add("running_var",
                      Fill(statistics, channels, [](int64_t i) { return ParameterValue(i, 0); })));
    return status;
  }

  absl::StatusOr<PreparedRequest> Set(int64_t set) {
    const std::vector<int64_t> size = {case_.parameter_size()};
    const auto value = [set](int64_t i) { return ParameterValue(i, set); };
    absl::Status status;
    if (case_.weight) status.Update(Add("weight", Fill(case_.parameter_dtype(), size, value)));
    if (case_.bias && !backward())
      status.Update(Add("bias", Fill(case_.parameter_dtype(), size, value)));
    if (!status.ok()) return status;
    absl::StatusOr<OpRequest> typed = MakeRequest(Options(), tensors_);
    if (!typed.ok()) return typed.status();
    absl::StatusOr<client::EncodedRequest> encoded =
        std::visit([](const auto& request) { return client::EncodedRequest::Of(request); }, *typed);
    if (!encoded.ok()) return encoded.status();
    return PreparedRequest{*std::move(typed), *std::move(encoded)};
  }

  int64_t tensor_bytes() const {
    int64_t bytes = 0;
    for (const auto& [name, tensor] : tensors_) bytes += Bytes(tensor);
    return bytes;
  }

  ExpectedOutput Expected() const {
    ExpectedOutput expected{case_.shape, case_.dtype, Bytes(tensors_.at("x"))};
    if (!backward()) {
      if (case_.residual) expected.tensor_bytes *= 2;
      if (case_.running) expected.tensor_bytes += 2 * Bytes(tensors_.at("running_mean"));
      return expected;
    }
    // dbias has the dtype of weight; without one f32, f64 for f64.
    DType dtype = case_.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    if (case_.weight) dtype = case_.parameter_dtype();
    expected.tensor_bytes += (case_.weight + case_.bias) * case_.parameter_size() *
                             static_cast<int64_t>(DTypeSize(dtype));
    return expected;
  }

 private:
  static int64_t Bytes(const client::Tensor& tensor) {
    return static_cast<int64_t>(tensor.bytes().size());
  }

  bool backward() const { return case_.direction == Direction::kBackward; }

  OpOptions Options() const {
    OpOptions options;
    options.op = case_.op;
    options.direction = case_.direction;
    options.mode = case_.mode;
    options.layout = case_.layout;
    options.gradients = {.weight = case_.weight, .bias = case_.bias};
    options.priority = case_.priority;
    return options;
  }

  absl::Status Add(const char* name, absl::StatusOr<client::Tensor> tensor) {
    if (!tensor.ok()) return tensor.status();
    tensors_.insert_or_assign(name, *std::move(tensor));
    return absl::OkStatus();
  }

  const LoadCase& case_;
  NamedTensors tensors_;
};

int64_t Bytes(const std::optional<client::ResultTensor>& tensor) {
  return tensor.has_value() ? tensor->size_bytes() : 0;
}

}  // namespace

absl::StatusOr<PreparedCase> PreparedCase::Make(const LoadCase& load_case) {
  Builder builder(load_case);
  if (absl::Status status = builder.AddShared(); !status.ok()) return status;
  PreparedCase prepared;
  for (int64_t set = 0; set < load_case.sets; ++set) {
    absl::StatusOr<PreparedRequest> request = builder.Set(set);
    if (!request.ok()) return request.status();
    prepared.sets_.push_back(*std::move(request));
  }
  prepared.tensor_bytes_ = builder.tensor_bytes();
  prepared.expected_ = builder.Expected();
  return prepared;
}

absl::Status PreparedCase::CheckMain(const client::ResultTensor& main, int64_t tensor_bytes) const {
  if (main.dtype() != expected_.dtype || main.shape() != expected_.shape) {
    return absl::InternalError(
        absl::StrCat("the result is ", ShapeText(main.shape()), " of ", DTypeName(main.dtype()),
                     ", not ", ShapeText(expected_.shape), " of ", DTypeName(expected_.dtype)));
  }
  if (tensor_bytes != expected_.tensor_bytes) {
    return absl::InternalError(
        absl::StrCat("all results have ", tensor_bytes, " bytes, not ", expected_.tensor_bytes));
  }
  return absl::OkStatus();
}

absl::Status PreparedCase::Check(const client::ForwardResult& result) const {
  return CheckMain(result.y, TensorBytes(result));
}

absl::Status PreparedCase::Check(const client::BackwardResult& result) const {
  return CheckMain(result.dx, TensorBytes(result));
}

int64_t TensorBytes(const client::ForwardResult& result) {
  return Bytes(result.y) + Bytes(result.mean) + Bytes(result.rstd) + Bytes(result.residual_sum) +
         Bytes(result.running_mean) + Bytes(result.running_var);
}

int64_t TensorBytes(const client::BackwardResult& result) {
  return Bytes(result.dx) + Bytes(result.dweight) + Bytes(result.dbias);
}

}  // namespace norm::normctl
