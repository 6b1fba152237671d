// What an EchoStream is made of.
#pragma once

#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "norm/client/echo.h"

namespace norm::client {

/// Messages leave in order of their Echo calls and come back in that order.
class EchoStream::Impl {
 public:
  explicit Impl(std::shared_ptr<grpc::Channel> channel);
  ~Impl();

  absl::Status Echo(const grpc::ByteBuffer& message, int64_t response_bytes, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum Event : intptr_t { kStarted, kRead, kWritten, kFinished };
  using Waiter = std::promise<absl::StatusOr<int64_t>>;  // the size of what came back

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void StartWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  // Of the thread: where the outstanding read and Finish put their result.
  grpc::ByteBuffer incoming_;
  grpc::Status status_;

  std::mutex mutex_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;  // and not finishing
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<grpc::ByteBuffer> unsent_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Waiter>> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);  // OK while it takes messages

  std::thread thread_;  // last: it uses everything above
};

}  // namespace norm::client
