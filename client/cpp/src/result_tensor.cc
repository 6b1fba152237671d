#include "norm/client/result_tensor.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "element_count.h"

namespace norm::client {

absl::StatusOr<ResultTensor> ResultTensor::Over(absl::Span<const Run> runs, DType dtype,
                                                std::vector<int64_t> shape,
                                                std::shared_ptr<const void> owner) {
  const absl::StatusOr<int64_t> elements = CountElements(shape, dtype);
  if (!elements.ok()) return elements.status();
  ResultTensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.elements_ = *elements;
  size_t bytes = 0;
  for (const Run run : runs) bytes += run.size();
  if (bytes != static_cast<size_t>(tensor.size_bytes())) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes where the shape needs ", tensor.size_bytes()));
  }
  tensor.runs_ = runs;
  tensor.owner_ = std::move(owner);
  return tensor;
}

ResultTensor ResultTensor::Of(Tensor tensor) {
  struct Whole {
    explicit Whole(Tensor held) : tensor(std::move(held)), run(tensor.bytes()) {}
    Tensor tensor;
    Run run;
  };
  auto whole = std::make_shared<const Whole>(std::move(tensor));
  ResultTensor result;
  result.dtype_ = whole->tensor.dtype();
  result.shape_ = whole->tensor.shape();
  result.elements_ = whole->tensor.elements();
  result.runs_ = absl::MakeConstSpan(&whole->run, 1);
  result.owner_ = std::move(whole);
  return result;
}

void ResultTensor::CopyTo(std::byte* destination) const {
  for (const Run run : runs_) {
    if (run.empty()) continue;
    std::memcpy(destination, run.data(), run.size());
    destination += run.size();
  }
}

absl::StatusOr<Tensor> ResultTensor::ToTensor() const {
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(dtype_, shape_);
  if (tensor.ok()) CopyTo(tensor->mutable_bytes().data());
  return tensor;
}

}  // namespace norm::client
