// Chunked requests as a client would send them with plain protobuf, and what comes back.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"

namespace norm::test {

/// A whole request, cut into the messages of a chunked one.
class ChunkedMessages {
 public:
  /// `request` is a NormalizeRequest or a NormalizeBackwardRequest.
  ChunkedMessages(uint64_t id, const google::protobuf::Message& request);

  int64_t rows() const { return rows_; }
  norm::v1::StreamRequest Header() const;
  /// Rows [first, first + count).
  norm::v1::StreamRequest Rows(int64_t first, int64_t count, bool last) const;
  /// Header and rows, `rows_per_message` at a time.
  std::vector<norm::v1::StreamRequest> All(int64_t rows_per_message) const;

 private:
  struct Column {
    std::string name;
    std::string bytes;
    size_t row_bytes = 0;
  };

  norm::v1::StreamRequest header_;
  std::vector<Column> columns_;
  int64_t rows_ = 0;
};

/// What came back under one id.
struct ChunkedResult {
  std::map<std::string, std::string> rows;  // bytes by tensor
  int64_t row_messages = 0;
  norm::v1::StreamResponse final;
  int finals = 0;

  /// Fails the test where rows come after the final response or out of order. `row_bytes` of the
  /// first tensor in the message tells rows from bytes.
  void Add(const norm::v1::StreamResponse& response);
};

/// Whether the result holds exactly the tensors of `whole`, the response of the unary call, with the
/// same bits.
::testing::AssertionResult SameBits(const google::protobuf::Message& whole,
                                    const ChunkedResult& result);

/// A stream of the plain client.
using RequestStream = grpc::ClientReaderWriter<norm::v1::StreamRequest, norm::v1::StreamResponse>;

/// A stream whose responses are read as they come, on a thread of its own.
class OpenStream {
 public:
  explicit OpenStream(norm::v1::NormalizationService::Stub& stub);
  /// Cancels what is left.
  ~OpenStream();

  bool Write(const norm::v1::StreamRequest& message) { return stream_->Write(message); }
  grpc::ClientContext& context() { return context_; }

  /// Waits for the final response under `id`; the test fails where none comes.
  ChunkedResult AwaitFinal(uint64_t id);
  /// Waits until so many messages with rows have come under `id`.
  ::testing::AssertionResult AwaitRows(uint64_t id, int64_t messages);
  /// How many final responses have come under `id` until now.
  int finals(uint64_t id);
  /// Forgets what came under `id`, so that it can be used again.
  void Forget(uint64_t id);
  /// Half-closes and waits for the end of the stream.
  grpc::Status Finish();

 private:
  grpc::ClientContext context_;
  std::unique_ptr<RequestStream> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, ChunkedResult> results_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reader_;
};

/// Writes `messages` on a thread of its own, half-closes, and collects every response by id.
std::map<uint64_t, ChunkedResult> SendAll(RequestStream& stream,
                                          const std::vector<norm::v1::StreamRequest>& messages);

/// One request on a stream of its own.
ChunkedResult SendAll(norm::v1::NormalizationService::Stub& stub,
                      const std::vector<norm::v1::StreamRequest>& messages);

}  // namespace norm::test
