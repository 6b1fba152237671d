#include "result_decoder.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/codec/dtype_mapping.h"

namespace norm::client {
namespace {

absl::StatusOr<ResultTensor> DecodeTensor(const char* name, const SharedMessage& received,
                                          const norm::v1::Tensor& tensor) {
  const std::optional<DType> dtype = wire::FromProto(tensor.dtype());
  if (!dtype.has_value()) {
    return absl::InternalError(absl::StrCat("the server's ", name, " has dtype ", tensor.dtype()));
  }
  absl::StatusOr<ResultTensor> result = ResultTensor::Over(
      received->payload(tensor).runs, *dtype,
      std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end()), received);
  if (result.ok()) return result;
  return absl::InternalError(absl::StrCat("the server's ", name, ": ", result.status().message()));
}

/// Decodes the optional tensors of a response and keeps the first error.
class TensorDecoder {
 public:
  TensorDecoder(const SharedMessage& received, RowTensors rows)
      : received_(received), rows_(std::move(rows)) {}

  std::optional<ResultTensor> Take(const char* name, bool present, const norm::v1::Tensor& tensor) {
    if (const auto found = rows_.find(name); found != rows_.end()) {
      return ResultTensor::Of(std::move(found->second));
    }
    if (!present || !status_.ok()) return std::nullopt;
    absl::StatusOr<ResultTensor> result = DecodeTensor(name, received_, tensor);
    if (!result.ok()) {
      status_ = result.status();
      return std::nullopt;
    }
    return *std::move(result);
  }

  const absl::Status& status() const { return status_; }

 private:
  const SharedMessage& received_;
  RowTensors rows_;
  absl::Status status_;
};

Timing FromProto(const norm::v1::Timing& timing) {
  return Timing{.decode_us = timing.decode_us(),
                .queue_us = timing.queue_us(),
                .copy_in_us = timing.copy_in_us(),
                .kernel_us = timing.kernel_us(),
                .copy_out_us = timing.copy_out_us(),
                .total_us = timing.total_us(),
                .device = timing.device(),
                .batch_requests = timing.batch_requests(),
                .batch_rows = timing.batch_rows()};
}

}  // namespace

absl::StatusOr<ForwardResult> Decode(const SharedMessage& received,
                                     const norm::v1::NormalizeResponse& message, RowTensors rows) {
  TensorDecoder tensors(received, std::move(rows));
  std::optional<ResultTensor> y = tensors.Take("y", message.has_y(), message.y());
  std::optional<ResultTensor> mean = tensors.Take("mean", message.has_mean(), message.mean());
  std::optional<ResultTensor> rstd = tensors.Take("rstd", message.has_rstd(), message.rstd());
  std::optional<ResultTensor> sum =
      tensors.Take("residual_sum", message.has_residual_sum(), message.residual_sum());
  std::optional<ResultTensor> running_mean =
      tensors.Take("running_mean", message.has_running_mean(), message.running_mean());
  std::optional<ResultTensor> running_var =
      tensors.Take("running_var", message.has_running_var(), message.running_var());
  if (!tensors.status().ok()) return tensors.status();
  if (!y.has_value()) return absl::InternalError("the server's response has no y");
  return ForwardResult{.y = *std::move(y),
                       .mean = std::move(mean),
                       .rstd = std::move(rstd),
                       .residual_sum = std::move(sum),
                       .running_mean = std::move(running_mean),
                       .running_var = std::move(running_var),
                       .timing = FromProto(message.timing())};
}

absl::StatusOr<BackwardResult> Decode(const SharedMessage& received,
                                      const norm::v1::NormalizeBackwardResponse& message,
                                      RowTensors rows) {
  TensorDecoder tensors(received, std::move(rows));
  std::optional<ResultTensor> dx = tensors.Take("dx", message.has_dx(), message.dx());
  std::optional<ResultTensor> dweight =
      tensors.Take("dweight", message.has_dweight(), message.dweight());
  std::optional<ResultTensor> dbias = tensors.Take("dbias", message.has_dbias(), message.dbias());
  if (!tensors.status().ok()) return tensors.status();
  if (!dx.has_value()) return absl::InternalError("the server's response has no dx");
  return BackwardResult{.dx = *std::move(dx),
                        .dweight = std::move(dweight),
                        .dbias = std::move(dbias),
                        .timing = FromProto(message.timing())};
}

}  // namespace norm::client
