// The machinery behind NormalizeStream: the gRPC call and the threads that poll its queue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "call_metadata.h"
#include "grpcpp/alarm.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "norm/client/stream.h"
#include "norm/v1/normalization.pb.h"
#include "proto/codec/message_reader.h"
#include "proto/codec/message_writer.h"
#include "result_decoder.h"
#include "row_transfer.h"

namespace norm::client {

/// The thread polls the queue, reads, completes and expires requests. Submitting threads encode,
/// enqueue and start a write when none is outstanding (gRPC allows one). While tensors travel in
/// rows helpers poll too: who polls moves the connection's bytes. At most one read is outstanding
/// and its message is taken before the next, so messages stay in order; only rows, whose place is
/// known by then, are copied meanwhile.
class NormalizeStream::Impl {
 public:
  Impl(std::shared_ptr<grpc::Channel> channel, const StreamOptions& options, CallMetadata metadata);
  ~Impl();

  using Callback = std::variant<ForwardCallback, BackwardCallback>;

  void Submit(const ForwardRequest& request, absl::Duration timeout, ForwardCallback done);
  void Submit(const BackwardRequest& request, absl::Duration timeout, BackwardCallback done);
  /// A request as Encode made it, its body set. Threads: any.
  void SubmitEncoded(norm::v1::StreamRequest message, wire::MessageWriter writer,
                     absl::Duration timeout, const Callback& done, const CallOptions& options);
  absl::Status Finish(absl::Duration timeout);
  absl::Status status() const;
  int64_t in_flight() const;

 private:
  enum Event : intptr_t { kStarted, kRead, kWritten, kWritesDone, kKicked, kFinished };

  /// A response as it came, and for rows where they belong.
  struct Incoming {
    SharedMessage received;
    norm::v1::StreamResponse response;
    std::shared_ptr<RowTransfer> transfer;
    std::shared_ptr<TransferProgress> progress;
    int64_t first_row = 0;
  };
  struct Pending {
    absl::Time deadline;
    Callback done;
    std::shared_ptr<RowTransfer> rows;           // of a request that travels in rows
    std::shared_ptr<TransferProgress> progress;  // optional
    int64_t message_bytes = 0;                   // of the responses so far
    std::shared_ptr<Incoming> final;             // came while rows were still being copied
    // What it ends with at its deadline, or before it where it cannot be sent.
    absl::Status failure = absl::DeadlineExceededError("no result within the request's timeout");
  };
  struct Unsent {
    uint64_t id = 0;
    grpc::ByteBuffer buffer;
    bool cancel = false;  // leaves although the request is no longer pending
  };

  /// What a request is told that comes now.
  absl::Status Refusal() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const Callback& done, const absl::Status& status) const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Once the server's leading metadata have come.
  void TakeRequestId() ABSL_LOCKS_EXCLUDED(mutex_);

  /// Puts a request in line: `buffer`, or pending.rows.
  absl::Status Enqueue(uint64_t id, const grpc::ByteBuffer& buffer, Pending pending);

  void Run();
  void Handle(Event event, bool ok);
  /// Takes the next response, in order; what is left to do with rows, while the next one is read.
  std::optional<Incoming> Receive(const grpc::ByteBuffer& buffer);
  std::optional<Incoming> PlaceRows(Incoming incoming);
  void CopyRows(const Incoming& rows);
  /// The result of a final response.
  void Complete(const SharedMessage& received, const norm::v1::StreamResponse& response,
                const Pending& pending) const;
  /// Takes a request out. What the server still expects of it is called off.
  Pending Remove(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Ends late requests; when the next one is due.
  absl::Time ExpireRequests();
  void Close();
  void StartRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Starts the next write, or half-closes, where the state allows it. After whatever may have made
  /// it possible, without the lock.
  void Send() ABSL_LOCKS_EXCLUDED(mutex_);
  /// What leaves next: whole requests and cancels first, then transfers that may send, in turn.
  std::optional<grpc::ByteBuffer> NextMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool OnOwnThread() const;
  void StartHelpers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Kick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const StreamOptions options_;
  const CallMetadata metadata_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::Alarm alarm_;
  std::atomic<uint64_t> next_id_{1};

  // Of who handles the event of the outstanding read or Finish, which put their result here.
  grpc::ByteBuffer incoming_;
  grpc::Status grpc_status_;

  std::mutex callbacks_;  // held while a callback runs, and nothing else is
  mutable std::mutex mutex_;
  std::condition_variable changed_;                        // room to send, half-closed, closed
  bool request_id_taken_ ABSL_GUARDED_BY(mutex_) = false;  // from what the server sent
  std::string request_id_
      ABSL_GUARDED_BY(mutex_);  // of the stream: the client's, then the server's
  std::unordered_map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mutex_);
  std::deque<Unsent> unsent_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint64_t> uploads_ ABSL_GUARDED_BY(mutex_);  // transfers with more to send, by turn
  int copying_ ABSL_GUARDED_BY(mutex_) = 0;               // messages with rows being copied
  int open_transfers_ ABSL_GUARDED_BY(mutex_) = 0;        // pending ones whose header was written
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
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;  // the queue
  absl::Time awake_at_ ABSL_GUARDED_BY(mutex_) =
      absl::InfiniteFuture();  // when a thread wakes without an event
  absl::Status final_status_ ABSL_GUARDED_BY(mutex_);

  // Last: they use everything above.
  std::thread thread_;
  std::vector<std::thread> helpers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace norm::client
