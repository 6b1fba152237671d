// Turns the tensors of one request into a Job, role by role.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "norm/v1/tensor.pb.h"
#include "proto/codec/message_reader.h"
#include "server/scheduler/job.h"
#include "server/transport/tensor_check.h"

namespace norm::server {

/// The tensors a request carries, indexed by TensorRole; null where absent.
using RequestTensors = std::array<const norm::v1::Tensor*, kTensorRoleCount>;

/// Builds one job. Every Take fills inputs and problem and stops at the first violation.
///
/// Order:      op and options are in problem() first, then TakeX, then the other tensors.
/// Ownership:  borrows tensors and message; the job's inputs borrow from `message`. Those that
///             travel in rows are left without bytes.
class JobBuilder {
 public:
  JobBuilder(const RequestTensors& tensors, const wire::ReceivedMessage& message, Transfer transfer)
      : tensors_(tensors), message_(message), transfer_(transfer), job_(std::make_unique<Job>()) {}

  NormProblem& problem() { return job_->problem; }
  Priority* priority() { return &job_->priority; }
  int* normalized_dims() { return &normalized_dims_; }
  bool Has(TensorRole role) const { return tensors_[static_cast<size_t>(role)] != nullptr; }
  std::unique_ptr<Job> Build() { return std::move(job_); }

  /// Takes x and derives rows, hidden_size and the BatchNorm shape from it.
  absl::Status TakeX();
  /// A tensor of the shape and dtype of x, when present.
  absl::Status TakeLikeX(TensorRole role);
  /// weight or bias, when present.
  absl::Status TakeParameter(TensorRole role);
  /// Statistics: one value per channel, or per row for row ops; when present.
  absl::Status TakeStatistics(TensorRole role);

  /// Refuses a tensor that the op does not take.
  absl::Status Refuse(TensorRole role, absl::string_view why) const;
  absl::Status Require(TensorRole role, absl::string_view why) const;
  /// Both or none.
  absl::Status RequirePair(TensorRole a, TensorRole b) const;

  /// RESOURCE_EXHAUSTED when the outputs of problem() that go into one message take more than
  /// `max_output_bytes` together.
  absl::Status CheckOutputs(int64_t max_output_bytes) const;

 private:
  using Dims = absl::Span<const int64_t>;

  Dims NormalizedDims() const;
  Dims LeadingDims() const;
  absl::StatusOr<CheckedTensor> Take(TensorRole role);
  Transfer TransferOf(TensorRole role) const;
  absl::Status ReadRowShape();
  absl::Status ReadBatchNormShape();

  const RequestTensors& tensors_;
  const wire::ReceivedMessage& message_;
  const Transfer transfer_;
  std::unique_ptr<Job> job_;
  std::vector<int64_t> x_shape_;
  int normalized_dims_ = 1;
};

}  // namespace norm::server
