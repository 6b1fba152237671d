#include "row_transfer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/codec/dtype_mapping.h"

namespace norm::client {
namespace {

using norm::v1::InputRows;
using norm::v1::NormalizeBackwardRequest;
using norm::v1::NormalizeRequest;
using norm::v1::OutputRows;
using norm::v1::StreamRequest;

int64_t Product(const norm::v1::Tensor& tensor, int first, int last) {
  int64_t product = 1;
  for (int i = std::max(first, 0); i < last; ++i) product *= tensor.shape(i);
  return product;
}

int64_t Elements(const norm::v1::Tensor& tensor) { return Product(tensor, 0, tensor.shape_size()); }

int64_t ElementBytes(const norm::v1::Tensor& tensor) {
  return static_cast<int64_t>(DTypeSize(wire::FromProto(tensor.dtype()).value_or(DType::kF32)));
}

/// Elements of a row of x, as NormalizeStream defines it. Of a shape that the op does not take: all.
template <typename Request>
int64_t RowElements(const Request& request) {
  const norm::v1::Tensor& x = request.x();
  const int rank = x.shape_size();
  if (!request.has_batch_norm()) {
    const int dims = request.has_rms_norm() ? request.rms_norm().normalized_dims()
                                            : request.layer_norm().normalized_dims();
    return Product(x, rank - std::max(dims, 1), rank);
  }
  if (rank < 2) return Elements(x);
  if (request.batch_norm().layout() == norm::v1::BatchNorm::LAYOUT_NHWC) return x.shape(rank - 1);
  const int64_t positions = Product(x, 2, rank);
  return positions == 1 ? x.shape(1) : positions;
}

/// Rows that the server must have before it returns any: an image in NCHW, else one.
template <typename Request>
int64_t UnitRows(const Request& request) {
  const bool nchw =
      request.has_batch_norm() && request.batch_norm().layout() == norm::v1::BatchNorm::LAYOUT_NCHW;
  return nchw && request.x().shape_size() > 2 ? request.x().shape(1) : 1;
}

template <typename Request>
bool IsTraining(const Request& request) {
  return request.has_batch_norm() &&
         request.batch_norm().mode() != norm::v1::BatchNorm::MODE_INFERENCE;
}

bool RowsAreIndependent(const NormalizeRequest& request) { return !IsTraining(request); }
bool RowsAreIndependent(const NormalizeBackwardRequest& request) {
  const bool dweight = request.has_weight() && !request.omit_dweight();
  const bool dbias = request.has_bias() && !request.omit_dbias();
  return !IsTraining(request) && !dweight && !dbias;
}

/// Calls visit(name, tensor) for the tensors that are sent in rows.
template <typename Visit>
void ForEachPlace(NormalizeRequest* request, Visit visit) {
  visit("x", request->mutable_x());
  if (request->has_residual()) visit("residual", request->mutable_residual());
}

template <typename Visit>
void ForEachPlace(NormalizeBackwardRequest* request, Visit visit) {
  visit("x", request->mutable_x());
  visit("dy", request->mutable_dy());
  if (request->has_dresidual_sum()) visit("dresidual_sum", request->mutable_dresidual_sum());
  if (request->has_batch_norm()) return;
  if (request->has_mean()) visit("mean", request->mutable_mean());
  if (request->has_rstd()) visit("rstd", request->mutable_rstd());
}

bool IsStatistic(const std::string& name) { return name == "mean" || name == "rstd"; }

std::string* Field(const std::string& name, InputRows* rows) {
  if (name == "residual") return rows->mutable_residual();
  if (name == "dy") return rows->mutable_dy();
  if (name == "dresidual_sum") return rows->mutable_dresidual_sum();
  if (name == "mean") return rows->mutable_mean();
  if (name == "rstd") return rows->mutable_rstd();
  return rows->mutable_x();
}

const std::string& Field(const std::string& name, const OutputRows& rows) {
  if (name == "residual_sum") return rows.residual_sum();
  if (name == "mean") return rows.mean();
  if (name == "rstd") return rows.rstd();
  if (name == "dx") return rows.dx();
  return rows.y();
}

std::vector<int64_t> Shape(const norm::v1::Tensor& tensor) {
  return {tensor.shape().begin(), tensor.shape().end()};
}

/// Shape of the statistics of row ops.
std::vector<int64_t> LeadingShape(const NormalizeRequest& request) {
  const int dims = request.has_rms_norm() ? request.rms_norm().normalized_dims()
                                          : request.layer_norm().normalized_dims();
  std::vector<int64_t> shape = Shape(request.x());
  shape.resize(static_cast<size_t>(std::max(request.x().shape_size() - std::max(dims, 1), 0)));
  if (shape.empty()) shape.push_back(1);
  return shape;
}

}  // namespace

int64_t BytesInRows(const StreamRequest& request) {
  const norm::v1::Tensor& x =
      request.has_forward() ? request.forward().x() : request.backward().x();
  const int tensors = request.has_forward() ? 1 + (request.forward().has_residual() ? 1 : 0)
                                            : 2 + (request.backward().has_dresidual_sum() ? 1 : 0);
  return Elements(x) * ElementBytes(x) * tensors;
}

absl::Status RowTransfer::AddOutput(std::string name, DType dtype, std::vector<int64_t> shape) {
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(dtype, std::move(shape));
  if (!tensor.ok()) return tensor.status();
  const auto size = static_cast<int64_t>(tensor->bytes().size());
  outputs_.push_back({std::move(name), rows_ == 0 ? 0 : size / rows_, *std::move(tensor)});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RowTransfer>> RowTransfer::Of(StreamRequest request,
                                                             wire::MessageWriter writer,
                                                             const ChunkOptions& options) {
  std::unique_ptr<RowTransfer> made(new RowTransfer(std::move(request), std::move(writer)));
  RowTransfer& transfer = *made;
  StreamRequest& header = transfer.header_;
  header.set_chunked(true);
  const auto cut = [&transfer](auto* body) {
    const int64_t row_elements = RowElements(*body);
    transfer.overlapping_ = RowsAreIndependent(*body);
    transfer.window_rows_ = UnitRows(*body);
    const int64_t elements = Elements(body->x());
    transfer.rows_ = elements == 0 ? 0 : elements / row_elements;
    ForEachPlace(body, [&](const char* name, norm::v1::Tensor* tensor) {
      const int64_t row_bytes = ElementBytes(*tensor) * (IsStatistic(name) ? 1 : row_elements);
      Column& column = transfer.columns_.emplace_back(
          Column{name, row_bytes, transfer.writer_.Detach(tensor->mutable_data())});
      if (static_cast<int64_t>(column.bytes.size()) != transfer.rows_ * row_bytes) {
        transfer.consistent_ = false;
      }
      transfer.row_bytes_in_ += row_bytes;
    });
  };
  absl::Status status;
  const auto expect = [&](const char* name, DType dtype, std::vector<int64_t> shape) {
    if (status.ok()) status = transfer.AddOutput(name, dtype, std::move(shape));
  };
  if (header.has_forward()) {
    NormalizeRequest* body = header.mutable_forward();
    cut(body);
    const DType dtype = wire::FromProto(body->x().dtype()).value_or(DType::kF32);
    expect("y", dtype, Shape(body->x()));
    if (body->has_residual()) expect("residual_sum", dtype, Shape(body->x()));
    if (body->return_statistics() && !body->has_batch_norm()) {
      expect("rstd", StatisticsDType(dtype), LeadingShape(*body));
      if (body->has_layer_norm()) expect("mean", StatisticsDType(dtype), LeadingShape(*body));
    }
  } else {
    NormalizeBackwardRequest* body = header.mutable_backward();
    cut(body);
    expect("dx", wire::FromProto(body->x().dtype()).value_or(DType::kF32), Shape(body->x()));
  }
  if (!status.ok()) return status;
  const int64_t row_bytes = std::max<int64_t>(transfer.row_bytes_in_, 1);
  transfer.message_rows_ = std::max<int64_t>(options.chunk_bytes / row_bytes, 1);
  transfer.window_rows_ = std::max(options.window_bytes / row_bytes, transfer.window_rows_);
  return made;
}

bool RowTransfer::MaySend() const {
  if (!header_sent_) return true;
  if (all_sent_ || !consistent_) return false;
  return !overlapping_ || sent_rows_ - returned_rows_ < window_rows_;
}

absl::StatusOr<grpc::ByteBuffer> RowTransfer::NextMessage() {
  if (!header_sent_) {
    header_sent_ = true;
    return writer_.Build(header_);
  }
  const int64_t rows = std::min(message_rows_, rows_ - sent_rows_);
  StreamRequest message;
  message.set_id(header_.id());
  InputRows* body = message.mutable_rows();
  body->set_first_row(sent_rows_);
  wire::MessageWriter writer;
  for (const Column& column : columns_) {
    const auto begin = static_cast<size_t>(sent_rows_ * column.row_bytes);
    const auto end = static_cast<size_t>((sent_rows_ + rows) * column.row_bytes);
    writer.Attach(Field(column.name, body), column.bytes.sub(begin, end));
  }
  sent_rows_ += rows;
  all_sent_ = sent_rows_ == rows_;
  body->set_last(all_sent_);
  return writer.Build(message);
}

absl::Status RowTransfer::Add(const wire::ReceivedMessage& message, const OutputRows& rows) {
  if (rows.first_row() != returned_rows_) {
    return absl::InternalError(absl::StrCat("the server sent rows from ", rows.first_row(),
                                            " on, not from ", returned_rows_.load()));
  }
  int64_t count = -1;
  for (Output& output : outputs_) {
    const wire::Payload& payload = message.payload(Field(output.name, rows));
    if (count < 0 && output.row_bytes > 0) count = payload.size_bytes / output.row_bytes;
    if (count <= 0 || count > rows_ - returned_rows_ ||
        payload.size_bytes != count * output.row_bytes) {
      return absl::InternalError(absl::StrCat("the server sent ", payload.size_bytes, " bytes of ",
                                              output.name, ", of rows of ", output.row_bytes));
    }
    payload.CopyTo(output.tensor.mutable_bytes().data() + returned_rows_ * output.row_bytes);
  }
  returned_rows_ += count;
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, Tensor>> RowTransfer::TakeResult() {
  if (returned_rows_ != rows_) {
    return absl::InternalError(
        absl::StrCat("the server ended with ", returned_rows_.load(), " of ", rows_, " rows"));
  }
  std::map<std::string, Tensor> tensors;
  for (Output& output : outputs_) tensors.emplace(output.name, std::move(output.tensor));
  return tensors;
}

}  // namespace norm::client
