// The way out of a chunked request: results in order, and its end.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/codec/message_writer.h"
#include "server/transport/chunked_request.h"

namespace norm::server {

bool ChunkedRequest::Finished() const {
  return !upload_open_ && started_jobs_ > 0 && started_rows_ == split_.rows && pieces_.empty();
}

std::optional<ChunkedRequest::Message> ChunkedRequest::TakeMessage() {
  const std::lock_guard lock(mutex_);
  if (final_taken_) return std::nullopt;
  if (error_.ok() && !pieces_.empty()) {
    if (!pieces_.front()->done) return std::nullopt;
    if (pieces_.front()->rows > 0) return RowsMessage();
    window_bytes_ -= pieces_.front()->window_bytes;
    pieces_.pop_front();
  }
  if (!error_.ok() || Finished()) return FinalMessage();
  return std::nullopt;
}

ChunkedRequest::Message ChunkedRequest::RowsMessage() {
  Piece& piece = *pieces_.front();
  const int64_t rows = std::min(message_rows_, piece.rows - piece.returned_rows);
  norm::v1::StreamResponse response;
  response.set_id(id());
  response.mutable_rows()->set_first_row(piece.first_row + piece.returned_rows);
  wire::MessageWriter writer;
  FillRows(piece.problem, piece.result, piece.returned_rows, rows, &writer,
           response.mutable_rows());
  exchange_.CountBytes(0, rows * row_bytes_out_);
  Message message;
  absl::StatusOr<grpc::ByteBuffer> bytes = writer.Build(response);
  if (!bytes.ok()) {
    EndLocked(absl::InternalError(absl::StrCat("encoding: ", bytes.status().message())));
    return FinalMessage();
  }
  message.bytes = *std::move(bytes);
  piece.returned_rows += rows;
  if (piece.returned_rows == piece.rows) {
    message.window_bytes = piece.window_bytes;
    pieces_.pop_front();
  }
  return message;
}

ChunkedRequest::Message ChunkedRequest::FinalMessage() {
  final_taken_ = true;
  if (error_.ok()) {
    norm::v1::StreamResponse response;
    response.set_id(id());
    wire::MessageWriter writer;
    if (header_->request.has_forward()) {
      exchange_.Respond(header_->request.forward(), std::move(final_), &writer,
                        response.mutable_forward());
    } else {
      exchange_.Respond(header_->request.backward(), std::move(final_), &writer,
                        response.mutable_backward());
    }
    absl::StatusOr<grpc::ByteBuffer> bytes = writer.Build(response);
    if (bytes.ok()) {
      exchange_.RecordEnd(direction(), absl::OkStatus(), id());
      return {*std::move(bytes), 0, exchange_.TakeSpan()};
    }
    EndLocked(absl::InternalError(absl::StrCat("encoding: ", bytes.status().message())));
  }
  exchange_.RecordEnd(direction(), error_, id());
  return {ErrorResponse(id(), error_), 0, exchange_.TakeSpan()};
}

void ChunkedRequest::Abandon() {
  const std::lock_guard lock(mutex_);
  upload_open_ = false;
  if (error_.ok()) EndLocked(absl::Status(exchange_.RecordLeft(), "the client has gone"));
  if (std::exchange(final_taken_, true)) return;
  exchange_.RecordEnd(direction(), error_, id());
  trace_.Record(exchange_.TakeSpan(), context_.clock.Now(), /*sent=*/false);
}

void ChunkedRequest::OnWritten(int64_t window_bytes) {
  {
    const std::lock_guard lock(mutex_);
    window_bytes_ -= window_bytes;
    last_progress_ = context_.clock.Now();
  }
  Pump();
}

}  // namespace norm::server
