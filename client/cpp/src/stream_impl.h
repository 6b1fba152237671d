// The machinery behind NormalizeStream: one thread that owns the gRPC call's completion queue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "grpcpp/alarm.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "norm/client/stream.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_writer.h"

namespace norm::client {

/// The thread polls the queue, reads, completes and expires requests. Submitting threads encode,
/// enqueue and start a write when none is outstanding (gRPC allows one).
class NormalizeStream::Impl {
 public:
  Impl(std::shared_ptr<grpc::Channel> channel, const StreamOptions& options);
  ~Impl();

  void Submit(const ForwardRequest& request, absl::Duration timeout, ForwardCallback done);
  void Submit(const BackwardRequest& request, absl::Duration timeout, BackwardCallback done);
  absl::Status Finish(absl::Duration timeout);
  absl::Status status() const;
  int64_t in_flight() const;

 private:
  enum Event : intptr_t { kStarted, kRead, kWritten, kWritesDone, kKicked, kFinished };

  using Callback = std::variant<ForwardCallback, BackwardCallback>;
  struct Pending {
    absl::Time deadline;
    Callback done;
  };
  struct Unsent {
    uint64_t id = 0;
    grpc::ByteBuffer buffer;
  };

  /// What a request is told that comes now.
  absl::Status Refusal() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Fail(const Callback& done, const absl::Status& status);

  absl::Status Encode(const ForwardRequest& request, wire::MessageWriter* writer,
                      norm::v1::StreamRequest* message);
  absl::Status Encode(const BackwardRequest& request, wire::MessageWriter* writer,
                      norm::v1::StreamRequest* message);
  template <typename Request>
  void SubmitTyped(const Request& request, absl::Duration timeout, const Callback& done);
  absl::Status Enqueue(uint64_t id, const grpc::ByteBuffer& buffer, absl::Time deadline,
                       const Callback& done);

  void Run();
  void Handle(Event event, bool ok);
  void Complete(const grpc::ByteBuffer& buffer);
  void ExpireRequests();
  void Close();
  void StartRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartWrites() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Kick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_unsent_bytes_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::Alarm alarm_;
  std::atomic<uint64_t> next_id_{1};

  // Owned by the thread: where the outstanding read and Finish put their result.
  grpc::ByteBuffer incoming_;
  grpc::Status grpc_status_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // room to send, half-closed, closed
  std::unordered_map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mutex_);
  std::deque<Unsent> unsent_ ABSL_GUARDED_BY(mutex_);
  int64_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t writing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int outstanding_ ABSL_GUARDED_BY(mutex_) = 0;  // operations whose event has not come back
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_close_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool kicked_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;   // takes no request: the server has ended it
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // and every request has completed
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time awake_at_ ABSL_GUARDED_BY(mutex_) =
      absl::InfiniteFuture();  // when the thread wakes without an event
  absl::Status final_status_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses everything above
};

}  // namespace norm::client
