#include "server/transport/response_encoder.h"

#include <string>
#include <utility>

#include "absl/types/span.h"
#include "proto/codec/dtype_mapping.h"
#include "server/scheduler/row_split.h"
#include "server/transport/queue_poller.h"

namespace norm::server {
namespace {

class ResponseFiller {
 public:
  ResponseFiller(const NormProblem& problem, const JobResult& result, Transfer transfer,
                 wire::MessageWriter* writer)
      : problem_(problem), result_(result), transfer_(transfer), writer_(writer) {}

  bool Has(TensorRole role) const {
    return problem_.outputs.Has(role) &&
           (transfer_ == Transfer::kWhole || !TravelsInRows(problem_.op, role));
  }

  template <typename Shape>
  void Set(TensorRole role, const Shape& shape, norm::v1::Tensor* tensor) {
    tensor->set_dtype(wire::ToProto(TensorDType(problem_, role)));
    for (const int64_t dimension : shape) tensor->add_shape(dimension);
    const OutputTensor& output = result_.outputs[static_cast<size_t>(role)];
    writer_->Attach(tensor,
                    absl::MakeConstSpan(output.data, static_cast<size_t>(output.size_bytes)),
                    output.owner);
  }

 private:
  const NormProblem& problem_;
  const JobResult& result_;
  const Transfer transfer_;
  wire::MessageWriter* writer_;
};

void FillTiming(const JobTiming& from, absl::Duration total, norm::v1::Timing* timing) {
  timing->set_decode_us(absl::ToDoubleMicroseconds(from.decode));
  timing->set_queue_us(absl::ToDoubleMicroseconds(from.queue));
  timing->set_copy_in_us(absl::ToDoubleMicroseconds(from.copy_in));
  timing->set_kernel_us(absl::ToDoubleMicroseconds(from.kernel));
  timing->set_copy_out_us(absl::ToDoubleMicroseconds(from.copy_out));
  timing->set_total_us(absl::ToDoubleMicroseconds(total));
  timing->set_device(from.device);
  timing->set_batch_requests(from.batch_requests);
  timing->set_batch_rows(from.batch_rows);
}

/// Leading dimensions of x before the normalized ones; [1] where x has no others.
std::vector<int64_t> RowStatisticsShape(const norm::v1::NormalizeRequest& request) {
  const int given = request.has_rms_norm() ? request.rms_norm().normalized_dims()
                                           : request.layer_norm().normalized_dims();
  const int leading = request.x().shape_size() - (given == 0 ? 1 : given);
  if (leading == 0) return {1};
  return {request.x().shape().begin(), request.x().shape().begin() + leading};
}

}  // namespace

void FillResponse(const norm::v1::NormalizeRequest& request, const NormProblem& problem,
                  const JobResult& result, absl::Duration total, wire::MessageWriter* writer,
                  norm::v1::NormalizeResponse* response, Transfer transfer) {
  FillTiming(result.timing, total, response->mutable_timing());
  ResponseFiller filler(problem, result, transfer, writer);
  const std::vector<int64_t> channels = {problem.hidden_size};
  const std::vector<int64_t> statistics =
      problem.op == Op::kBatchNorm ? channels : RowStatisticsShape(request);
  if (filler.Has(TensorRole::kY)) {
    filler.Set(TensorRole::kY, request.x().shape(), response->mutable_y());
  }
  if (filler.Has(TensorRole::kMean)) {
    filler.Set(TensorRole::kMean, statistics, response->mutable_mean());
  }
  if (filler.Has(TensorRole::kRstd)) {
    filler.Set(TensorRole::kRstd, statistics, response->mutable_rstd());
  }
  if (filler.Has(TensorRole::kResidualSum)) {
    filler.Set(TensorRole::kResidualSum, request.x().shape(), response->mutable_residual_sum());
  }
  if (filler.Has(TensorRole::kRunningMean)) {
    filler.Set(TensorRole::kRunningMean, channels, response->mutable_running_mean());
    filler.Set(TensorRole::kRunningVar, channels, response->mutable_running_var());
  }
}

void FillResponse(const norm::v1::NormalizeBackwardRequest& request, const NormProblem& problem,
                  const JobResult& result, absl::Duration total, wire::MessageWriter* writer,
                  norm::v1::NormalizeBackwardResponse* response, Transfer transfer) {
  FillTiming(result.timing, total, response->mutable_timing());
  ResponseFiller filler(problem, result, transfer, writer);
  if (filler.Has(TensorRole::kDx)) {
    filler.Set(TensorRole::kDx, request.x().shape(), response->mutable_dx());
  }
  if (filler.Has(TensorRole::kDweight)) {
    filler.Set(TensorRole::kDweight, request.weight().shape(), response->mutable_dweight());
  }
  if (filler.Has(TensorRole::kDbias)) {
    if (request.has_weight()) {
      filler.Set(TensorRole::kDbias, request.weight().shape(), response->mutable_dbias());
    } else {
      filler.Set(TensorRole::kDbias, std::vector<int64_t>{problem.hidden_size},
                 response->mutable_dbias());
    }
  }
}

void FillRows(const NormProblem& problem, const JobResult& result, int64_t skip, int64_t count,
              wire::MessageWriter* writer, norm::v1::OutputRows* rows) {
  const std::pair<TensorRole, std::string*> fields[] = {
      {TensorRole::kY, rows->mutable_y()},
      {TensorRole::kResidualSum, rows->mutable_residual_sum()},
      {TensorRole::kMean, rows->mutable_mean()},
      {TensorRole::kRstd, rows->mutable_rstd()},
      {TensorRole::kDx, rows->mutable_dx()},
  };
  for (const auto& [role, field] : fields) {
    if (!problem.outputs.Has(role) || !TravelsInRows(problem.op, role)) continue;
    const OutputTensor& output = result.outputs[static_cast<size_t>(role)];
    const int64_t row_bytes = RowBytes(problem, role);
    writer->Attach(
        field,
        absl::MakeConstSpan(output.data + skip * row_bytes, static_cast<size_t>(count * row_bytes)),
        output.owner);
  }
}

bool SentAtOnce(const JobResult& result) {
  // Sending takes the thread that starts it about 10 us for every 32 KiB, waking another one 10 us.
  constexpr int64_t kSentAtOnceBytes = int64_t{64} << 10;
  return result.timing.batch_requests == 1 &&
         (PollsQueue() || OutputBytes(result) <= kSentAtOnceBytes);
}

int64_t OutputBytes(const JobResult& result) {
  int64_t bytes = 0;
  for (const OutputTensor& output : result.outputs) bytes += output.size_bytes;
  return bytes;
}

}  // namespace norm::server
