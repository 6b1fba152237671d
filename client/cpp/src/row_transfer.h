// A request whose tensors travel in rows (NormalizationService.NormalizeStream, chunked requests):
// its messages one by one, and its result put together.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "norm/client/options.h"
#include "norm/client/tensor.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_reader.h"
#include "proto/codec/message_writer.h"

namespace norm::client {

/// Tensor bytes that a request sends in rows, where it is sent so: what ChunkOptions::above_bytes is
/// compared with.
int64_t BytesInRows(const norm::v1::StreamRequest& request);

/// Rows go out as slices of the caller's memory and are copied once on their way in, to where they
/// belong in the result.
///
/// Threads: one may send while another receives (Add, TakeResult).
class RowTransfer {
 public:
  /// Takes a whole request with its tensors attached to `writer`. A request whose tensors do not fit
  /// together sends its header alone, which the server refuses. Errors: RESOURCE_EXHAUSTED when
  /// there is no memory for the result.
  static absl::StatusOr<std::unique_ptr<RowTransfer>> Of(norm::v1::StreamRequest request,
                                                         wire::MessageWriter writer,
                                                         const ChunkOptions& options);

  /// Whether the header or some rows are still to be sent, and the window lets them go now.
  bool MaySend() const;
  /// The upload was begun and is not complete: the server must be told if it is given up.
  bool upload_open() const { return header_sent_ && !all_sent_; }
  bool all_sent() const { return all_sent_; }
  /// The next message. Precondition: MaySend().
  absl::StatusOr<grpc::ByteBuffer> NextMessage();

  /// Copies rows of the result to their place. Errors: INTERNAL when the server broke the contract.
  absl::Status Add(const wire::ReceivedMessage& message, const norm::v1::OutputRows& rows);
  /// The tensors that came in rows, by name; once all are there. Errors: INTERNAL when some are not.
  absl::StatusOr<std::map<std::string, Tensor>> TakeResult();

  int64_t sent_bytes() const { return sent_rows_ * row_bytes_in_; }
  int64_t total_bytes() const { return rows_ * row_bytes_in_; }
  /// Of the rows, how many have come back; 1 where there are none.
  double returned() const {
    return rows_ == 0 ? 1.0 : static_cast<double>(returned_rows_) / static_cast<double>(rows_);
  }

 private:
  struct Column {
    std::string name;
    int64_t row_bytes = 0;
    grpc::Slice bytes;
  };
  struct Output {
    std::string name;
    int64_t row_bytes = 0;
    Tensor tensor;
  };

  RowTransfer(norm::v1::StreamRequest header, wire::MessageWriter writer)
      : header_(std::move(header)), writer_(std::move(writer)) {}
  absl::Status AddOutput(std::string name, DType dtype, std::vector<int64_t> shape);

  norm::v1::StreamRequest header_;
  wire::MessageWriter writer_;  // of the header
  std::vector<Column> columns_;
  std::vector<Output> outputs_;
  int64_t rows_ = 0;
  int64_t row_bytes_in_ = 0;
  int64_t message_rows_ = 1;
  int64_t window_rows_ = 1;
  // Results come back while rows are sent: the window counts.
  bool overlapping_ = false;
  bool header_sent_ = false;
  bool consistent_ = true;
  bool all_sent_ = false;
  int64_t sent_rows_ = 0;
  std::atomic<int64_t> returned_rows_{0};
};

}  // namespace norm::client
