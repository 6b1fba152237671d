// One request whose tensors come and go in rows (NormalizationService.NormalizeStream, chunked
// requests). Knows nothing of gRPC's calls.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/scheduler/row_split.h"
#include "server/transport/exchange.h"
#include "server/transport/input_rows.h"
#include "server/transport/stream_message.h"

namespace norm::server {

/// From the header to the final response.
///
/// Rows that do not depend on each other become jobs as soon as they are here, as large as the
/// arrivals and kJobBytes allow. The rest is gathered, in memory that a device takes it from, and is
/// one job once `last` has come; memory for its results is leased with that for its rows, so that
/// it does not end for want of any. Results wait for their turn and leave in order.
///
/// Memory:     rows waiting for their job: held_up_bytes(), which the stream keeps near the window by
///             not reading. Jobs whose results have not been written: the window, or one job where
///             that is more; of a gathered request all inputs and outputs. The scheduler's budget
///             counts them from Open on.
/// Ownership:  held by its stream and by its jobs. Borrows context and stream, which outlive its
///             jobs (Stream::JobStarts).
/// Threads:    safe. Never calls the stream with its lock held.
class ChunkedRequest final : public std::enable_shared_from_this<ChunkedRequest> {
 public:
  /// What a request asks of its stream.
  class Stream {
   public:
    /// A job begins, and ends; the stream lives between. After the second there may be something to
    /// write, `here` on this thread or else on one of the stream.
    virtual void JobStarts() = 0;
    virtual void JobEnded(bool here) = 0;

   protected:
    ~Stream() = default;
  };

  /// `flow`: see FlowOf.
  ChunkedRequest(const ServingContext& context, CallTrace& trace, Stream& stream,
                 std::shared_ptr<StreamMessage> header, uint64_t flow, absl::Time deadline);

  uint64_t id() const { return header_->request.id(); }

  /// Decodes the header and reserves memory; once, before anything else. On an error the request
  /// ends with it (TakeMessage), and rows are dropped until the upload closes.
  void Open() ABSL_LOCKS_EXCLUDED(mutex_);
  /// Takes the next rows, or ends the request with INVALID_ARGUMENT.
  void Accept(const std::shared_ptr<const StreamMessage>& rows) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Ends the request early, unless it has ended. `close_upload`: no rows will follow.
  void End(const absl::Status& status, bool close_upload) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Half-closed: INVALID_ARGUMENT unless all rows have come.
  void EndUpload() ABSL_LOCKS_EXCLUDED(mutex_);
  /// Ends it with DEADLINE_EXCEEDED if its time is up, or if it has waited too long for rows while
  /// they were being read.
  void Expire(absl::Time now, bool reading) ABSL_LOCKS_EXCLUDED(mutex_);
  /// When Expire will have something to do.
  absl::Time NextTimeout(bool reading) const ABSL_LOCKS_EXCLUDED(mutex_);

  struct Message {
    grpc::ByteBuffer bytes;
    int64_t window_bytes = 0;                    // to give to OnWritten
    std::unique_ptr<SpanRecord> span = nullptr;  // of the request that ends with it; may be null
  };
  /// The next response message, if one is ready.
  std::optional<Message> TakeMessage() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWritten(int64_t window_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Nobody will take messages any more: counts the end of the request where that is still to do.
  /// The caller has the scheduler look for what was cancelled.
  void Abandon() ABSL_LOCKS_EXCLUDED(mutex_);

  /// Bytes of rows that wait for the window, not for more rows.
  int64_t held_up_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool upload_open() const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Whether its upload is open and it has not failed.
  bool awaits_rows() const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Whether the final response was taken and the upload is closed: its id is free.
  bool closed() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  /// Rows of one job.
  struct Piece {
    int64_t first_row = 0;
    int64_t rows = 0;
    int64_t returned_rows = 0;
    int64_t window_bytes = 0;
    NormProblem problem;
    bool done = false;
    JobResult result;
  };

  struct Needs {
    NormProblem largest_job;
    int64_t reserved_bytes = 0;  // of what is in flight at once
    int64_t gathered_bytes = 0;  // of memory that rows and parameters are put together in
  };

  absl::Status Decode() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Plan(Needs* needs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Reserve(const Needs& needs, std::unique_ptr<Reservation>* reservation,
                       JobMemory* memory) const ABSL_LOCKS_EXCLUDED(mutex_);
  /// OK when the rows were taken, else what the request ended with.
  absl::Status Take(const std::shared_ptr<const StreamMessage>& message)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Check(const StreamMessage& message, int64_t* rows) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Starts every job that can start.
  void Pump() ABSL_LOCKS_EXCLUDED(mutex_);
  /// Rows of the next job, if there is one.
  std::optional<int64_t> NextJobRows() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<Job> MakeJob(int64_t rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnJobDone(Piece& piece, JobResult result) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Expiry(absl::Time now) const ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Gives back what only jobs need, once none will come and none is running.
  void ReleaseIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Finished() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Message RowsMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Message FinalMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Direction direction() const;

  const ServingContext& context_;
  CallTrace& trace_;
  Stream& stream_;
  const std::shared_ptr<StreamMessage> header_;
  const uint64_t flow_;
  const absl::Time deadline_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);

  mutable std::mutex mutex_;
  Exchange exchange_ ABSL_GUARDED_BY(mutex_);
  // Set by Open.
  NormProblem problem_ ABSL_GUARDED_BY(mutex_);
  Priority priority_ ABSL_GUARDED_BY(mutex_) = Priority::kInteractive;
  RowSplit split_ ABSL_GUARDED_BY(mutex_);
  bool overlapping_ ABSL_GUARDED_BY(mutex_) = false;
  std::array<InputTensor, kTensorRoleCount> parameters_ ABSL_GUARDED_BY(mutex_);
  std::vector<RowColumn> columns_ ABSL_GUARDED_BY(mutex_);
  int64_t row_bytes_in_ ABSL_GUARDED_BY(mutex_) = 0;  // of all tensors that travel in rows
  int64_t row_bytes_out_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t job_rows_ ABSL_GUARDED_BY(mutex_) = 0;      // most rows of a job
  int64_t message_rows_ ABSL_GUARDED_BY(mutex_) = 0;  // most rows of a response message
  std::unique_ptr<Reservation> reservation_ ABSL_GUARDED_BY(mutex_);

  bool upload_open_ ABSL_GUARDED_BY(mutex_) = true;
  std::optional<RowQueue> queue_ ABSL_GUARDED_BY(mutex_);          // of overlapping rows
  std::shared_ptr<RowAssembly> assembly_ ABSL_GUARDED_BY(mutex_);  // of gathered ones
  int64_t received_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t started_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t started_jobs_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t running_jobs_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t window_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of jobs whose results are not yet written
  std::deque<std::shared_ptr<Piece>> pieces_ ABSL_GUARDED_BY(mutex_);  // not wholly returned
  JobResult final_ ABSL_GUARDED_BY(mutex_);  // outputs that are not rows, and times of all jobs
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  bool final_taken_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_progress_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace norm::server
