#include "request_encoder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/codec/dtype_mapping.h"

namespace norm::client {
namespace {

constexpr size_t kProgressPieceBytes = size_t{4} << 20;

norm::v1::Rounding ToProto(Rounding rounding) {
  return rounding == Rounding::kOnce ? norm::v1::ROUNDING_ONCE
                                     : norm::v1::ROUNDING_NORMALIZED_FIRST;
}

norm::v1::Priority ToProto(Priority priority) {
  return priority == Priority::kBulk ? norm::v1::PRIORITY_BULK : norm::v1::PRIORITY_INTERACTIVE;
}

norm::v1::BatchNorm::Layout ToProto(BatchNormLayout layout) {
  return layout == BatchNormLayout::kNchw ? norm::v1::BatchNorm::LAYOUT_NCHW
                                          : norm::v1::BatchNorm::LAYOUT_NHWC;
}

norm::v1::BatchNorm::Mode ToProto(BatchNormMode mode) {
  return mode == BatchNormMode::kTraining ? norm::v1::BatchNorm::MODE_TRAINING
                                          : norm::v1::BatchNorm::MODE_INFERENCE;
}

/// Attaches views to a message and keeps the first error.
class TensorEncoder {
 public:
  explicit TensorEncoder(wire::MessageWriter* writer) : writer_(writer) {}

  void Add(const char* name, const TensorView& view, norm::v1::Tensor* tensor) {
    if (!status_.ok()) return;
    if (absl::Status valid = view.Validate(); !valid.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(name, ": ", valid.message()));
      return;
    }
    tensor->set_dtype(wire::ToProto(view.dtype()));
    tensor->mutable_shape()->Add(view.shape().begin(), view.shape().end());
    if (view.size_bytes() == 0) return;
    if (view.is_contiguous() && view.owner() != nullptr) {
      writer_->Attach(tensor, view.contiguous_bytes(), view.owner());
      return;
    }
    absl::StatusOr<Tensor> copy = Tensor::CopyOf(view);
    if (!copy.ok()) {
      status_ = copy.status();
      return;
    }
    const TensorView copied = copy->view();
    writer_->Attach(tensor, copied.contiguous_bytes(), copied.owner());
  }

  const absl::Status& status() const { return status_; }

 private:
  wire::MessageWriter* writer_;
  absl::Status status_;
};

}  // namespace

// Absent tensors stay absent in the message.
#define NORM_ADD_TENSOR(name)                                                                   \
  do {                                                                                          \
    if (request.name.has_value()) tensors.Add(#name, *request.name, message->mutable_##name()); \
  } while (false)

namespace {

void EncodeOp(const RmsNormRequest& request, norm::v1::NormalizeRequest* message,
              TensorEncoder& tensors) {
  norm::v1::RmsNorm* op = message->mutable_rms_norm();
  op->set_normalized_dims(request.normalized_dims);
  op->set_eps(request.eps);
  op->set_weight_offset(request.weight_offset);
  op->set_rounding(ToProto(request.rounding));
  NORM_ADD_TENSOR(weight);
  NORM_ADD_TENSOR(residual);
}

void EncodeOp(const LayerNormRequest& request, norm::v1::NormalizeRequest* message,
              TensorEncoder& tensors) {
  norm::v1::LayerNorm* op = message->mutable_layer_norm();
  op->set_normalized_dims(request.normalized_dims);
  op->set_eps(request.eps);
  op->set_rounding(ToProto(request.rounding));
  NORM_ADD_TENSOR(weight);
  NORM_ADD_TENSOR(bias);
  NORM_ADD_TENSOR(residual);
}

void EncodeOp(const BatchNormRequest& request, norm::v1::NormalizeRequest* message,
              TensorEncoder& tensors) {
  norm::v1::BatchNorm* op = message->mutable_batch_norm();
  op->set_layout(ToProto(request.layout));
  op->set_mode(ToProto(request.mode));
  op->set_eps(request.eps);
  if (const double* momentum = std::get_if<double>(&request.average)) {
    op->set_momentum(*momentum);
  } else {
    op->set_num_batches_tracked(std::get<CumulativeAverage>(request.average).num_batches_tracked);
  }
  NORM_ADD_TENSOR(weight);
  NORM_ADD_TENSOR(bias);
  NORM_ADD_TENSOR(running_mean);
  NORM_ADD_TENSOR(running_var);
}

void EncodeOp(const RmsNormBackwardRequest& request, norm::v1::NormalizeBackwardRequest* message,
              TensorEncoder& tensors) {
  norm::v1::RmsNorm* op = message->mutable_rms_norm();
  op->set_normalized_dims(request.normalized_dims);
  op->set_eps(request.eps);
  op->set_weight_offset(request.weight_offset);
  NORM_ADD_TENSOR(weight);
  NORM_ADD_TENSOR(rstd);
  NORM_ADD_TENSOR(dresidual_sum);
}

void EncodeOp(const LayerNormBackwardRequest& request, norm::v1::NormalizeBackwardRequest* message,
              TensorEncoder& tensors) {
  norm::v1::LayerNorm* op = message->mutable_layer_norm();
  op->set_normalized_dims(request.normalized_dims);
  op->set_eps(request.eps);
  NORM_ADD_TENSOR(weight);
  NORM_ADD_TENSOR(mean);
  NORM_ADD_TENSOR(rstd);
  NORM_ADD_TENSOR(dresidual_sum);
}

void EncodeOp(const BatchNormBackwardRequest& request, norm::v1::NormalizeBackwardRequest* message,
              TensorEncoder& tensors) {
  norm::v1::BatchNorm* op = message->mutable_batch_norm();
  op->set_layout(ToProto(request.layout));
  op->set_mode(ToProto(request.mode));
  op->set_eps(request.eps);
  NORM_ADD_TENSOR(weight);
  NORM_ADD_TENSOR(mean);
  NORM_ADD_TENSOR(rstd);
  NORM_ADD_TENSOR(running_mean);
  NORM_ADD_TENSOR(running_var);
}

#undef NORM_ADD_TENSOR

}  // namespace

absl::Status Encode(const ForwardRequest& request, wire::MessageWriter* writer,
                    norm::v1::NormalizeRequest* message) {
  TensorEncoder tensors(writer);
  std::visit(
      [&](const auto& typed) {
        message->set_return_statistics(typed.return_statistics);
        message->set_priority(ToProto(typed.priority));
        tensors.Add("x", typed.x, message->mutable_x());
        EncodeOp(typed, message, tensors);
      },
      request);
  return tensors.status();
}

absl::Status Encode(const BackwardRequest& request, wire::MessageWriter* writer,
                    norm::v1::NormalizeBackwardRequest* message) {
  TensorEncoder tensors(writer);
  std::visit(
      [&](const auto& typed) {
        message->set_omit_dweight(!typed.gradients.weight);
        message->set_has_bias(typed.gradients.bias);
        message->set_priority(ToProto(typed.priority));
        tensors.Add("dy", typed.dy, message->mutable_dy());
        tensors.Add("x", typed.x, message->mutable_x());
        EncodeOp(typed, message, tensors);
      },
      request);
  return tensors.status();
}

grpc::ByteBuffer WithProgress(const grpc::ByteBuffer& buffer,
                              const std::shared_ptr<TransferProgress>& progress) {
  struct Piece {
    grpc::Slice parent;
    std::shared_ptr<TransferProgress> progress;
    size_t size = 0;
  };
  const auto drop = [](void* pointer) {
    std::unique_ptr<Piece> piece(static_cast<Piece*>(pointer));
    piece->progress->sent_bytes.fetch_add(static_cast<int64_t>(piece->size),
                                          std::memory_order_relaxed);
  };
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return buffer;
  std::vector<grpc::Slice> pieces;
  for (const grpc::Slice& slice : slices) {
    for (size_t begin = 0; begin < slice.size(); begin += kProgressPieceBytes) {
      const size_t size = std::min(kProgressPieceBytes, slice.size() - begin);
      auto piece = std::make_unique<Piece>(Piece{slice, progress, size});
      // A small slice holds its bytes inline: the piece's own copy is the one to point into.
      auto* bytes = const_cast<uint8_t*>(piece->parent.begin()) + begin;
      pieces.emplace_back(bytes, size, drop, piece.release());
    }
  }
  progress->sent_bytes.store(0, std::memory_order_relaxed);
  progress->total_bytes.store(static_cast<int64_t>(buffer.Length()), std::memory_order_relaxed);
  return grpc::ByteBuffer(pieces.data(), pieces.size());
}

}  // namespace norm::client
