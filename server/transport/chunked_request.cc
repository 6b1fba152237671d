#include "server/transport/chunked_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/transport/field_error.h"

namespace norm::server {
namespace {

/// Input and output bytes that one job aims at: enough to fill a device, little enough that results
/// leave soon.
constexpr int64_t kJobBytes = int64_t{8} << 20;
/// Output bytes that one response message aims at.
constexpr int64_t kMessageBytes = int64_t{4} << 20;

/// Bytes of one row of all tensors of `roles` that travel in rows.
int64_t BytesPerRow(const NormProblem& problem, TensorRoleSet roles) {
  int64_t bytes = 0;
  for (int i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (roles.Has(role) && TravelsInRows(problem.op, role)) bytes += RowBytes(problem, role);
  }
  return bytes;
}

/// How many rows of `row_bytes` make up `bytes`, in multiples of `unit` and at least one.
int64_t RowsFor(int64_t bytes, int64_t row_bytes, int64_t unit) {
  return std::max(bytes / std::max<int64_t>(row_bytes * unit, 1), int64_t{1}) * unit;
}

}  // namespace

ChunkedRequest::ChunkedRequest(const ServingContext& context, CallTrace& trace, Stream& stream,
                               std::shared_ptr<StreamMessage> header, uint64_t flow,
                               absl::Time deadline)
    : context_(context),
      trace_(trace),
      stream_(stream),
      header_(std::move(header)),
      flow_(flow),
      deadline_(deadline),
      exchange_(context, trace, trace.NewRequestSpan(id(), header_->received), flow,
                header_->received),
      last_progress_(header_->received) {}

Direction ChunkedRequest::direction() const {
  return header_->request.has_backward() ? Direction::kBackward : Direction::kForward;
}

void ChunkedRequest::Open() {
  Needs needs;
  absl::Status status;
  {
    const std::lock_guard lock(mutex_);
    status = Decode();
    if (status.ok()) status = Plan(&needs);
  }
  // Without the lock: making room may end jobs of others.
  std::unique_ptr<Reservation> reservation;
  JobMemory memory;
  if (status.ok()) status = Reserve(needs, &reservation, &memory);
  const std::lock_guard lock(mutex_);
  if (!status.ok()) return EndLocked(status);
  if (!error_.ok()) return;
  reservation_ = std::move(reservation);
  if (memory.inputs != nullptr) {
    assembly_ =
        std::make_shared<RowAssembly>(columns_, split_.rows, parameters_, std::move(memory));
  }
}

absl::Status ChunkedRequest::Reserve(const Needs& needs, std::unique_ptr<Reservation>* reservation,
                                     JobMemory* memory) const {
  auto reserved = context_.scheduler.Reserve(flow_, needs.reserved_bytes, needs.largest_job);
  if (!reserved.ok()) return reserved.status();
  *reservation = *std::move(reserved);
  if (needs.gathered_bytes == 0) return absl::OkStatus();
  absl::StatusOr<JobMemory> leased =
      context_.scheduler.LeaseMemory(needs.largest_job, needs.gathered_bytes);
  if (!leased.ok()) return leased.status();
  *memory = *std::move(leased);
  return absl::OkStatus();
}

absl::Status ChunkedRequest::Decode() {
  const norm::v1::StreamRequest& request = header_->request;
  absl::StatusOr<std::unique_ptr<Job>> job = InvalidField(
      "chunked", "is set, but the message is no header: one of forward, backward must be set");
  if (request.has_forward()) {
    job = exchange_.Open(request.forward(), header_->bytes, deadline_, Transfer::kInRows);
  } else if (request.has_backward()) {
    job = exchange_.Open(request.backward(), header_->bytes, deadline_, Transfer::kInRows);
  }
  if (!job.ok()) return job.status();
  problem_ = (*job)->problem;
  priority_ = (*job)->priority;
  parameters_ = std::move((*job)->inputs);
  return absl::OkStatus();
}

absl::Status ChunkedRequest::Plan(Needs* needs) {
  split_ = SplitRows(problem_);
  overlapping_ = RowsAreIndependent(problem_);
  columns_ = RowColumns(problem_);
  queue_.emplace(columns_);
  row_bytes_in_ = BytesPerRow(problem_, problem_.inputs);
  row_bytes_out_ = BytesPerRow(problem_, problem_.outputs);
  if (split_.rows > 0 &&
      std::max(row_bytes_in_, row_bytes_out_) > context_.decode.max_output_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a row of the tensors takes ", std::max(row_bytes_in_, row_bytes_out_),
                     " bytes > max_message_bytes ", context_.decode.max_output_bytes));
  }
  message_rows_ = RowsFor(kMessageBytes, row_bytes_out_, 1);
  job_rows_ = overlapping_ ? RowsFor(std::min(kJobBytes, context_.stream.window_bytes),
                                     row_bytes_in_ + row_bytes_out_, split_.unit_rows)
                           : split_.rows;
  if (overlapping_) {
    needs->largest_job = RowsOf(problem_, std::min(job_rows_, split_.rows), true);
    needs->reserved_bytes =
        std::min(ProblemBytes(problem_),
                 std::max(context_.stream.window_bytes, ProblemBytes(needs->largest_job)));
  } else {
    needs->largest_job = problem_;
    needs->reserved_bytes = ProblemBytes(problem_);
    needs->gathered_bytes = RowAssembly::MemoryBytes(columns_, split_.rows, parameters_);
  }
  return absl::OkStatus();
}

void ChunkedRequest::Accept(const std::shared_ptr<const StreamMessage>& message) {
  if (Take(message).ok()) {
    Pump();
  } else {
    context_.scheduler.ReapQueue();
  }
}

absl::Status ChunkedRequest::Take(const std::shared_ptr<const StreamMessage>& message) {
  int64_t rows = 0;
  int64_t first_row = 0;
  std::shared_ptr<RowAssembly> assembly;
  {
    const std::lock_guard lock(mutex_);
    if (error_.ok()) {
      if (absl::Status status = Check(*message, &rows); !status.ok()) {
        context_.metrics.RecordRejected(RejectReason::kInvalid);
        EndLocked(status);
      }
    }
    first_row = received_rows_;
    if (error_.ok()) assembly = assembly_;
  }
  // Without the lock: megabytes.
  if (assembly != nullptr) assembly->Copy(*message, first_row);
  const std::lock_guard lock(mutex_);
  if (message->request.rows().last()) upload_open_ = false;
  if (!error_.ok()) return error_;
  last_progress_ = context_.clock.Now();
  received_rows_ += rows;
  exchange_.CountBytes(rows * row_bytes_in_, 0);
  if (overlapping_) queue_->Push(message, rows);
  return absl::OkStatus();
}

absl::Status ChunkedRequest::Check(const StreamMessage& message, int64_t* rows) const {
  const norm::v1::InputRows& chunk = message.request.rows();
  if (!upload_open_) return InvalidField("rows", "come after the last");
  if (chunk.first_row() != received_rows_) {
    return InvalidField("rows.first_row", absl::StrCat(chunk.first_row(), " != ", received_rows_,
                                                       ", the number of rows sent before"));
  }
  absl::StatusOr<int64_t> count = CountRows(message, columns_);
  if (!count.ok()) return count.status();
  const int64_t missing = split_.rows - received_rows_;
  if (*count > missing) {
    return InvalidField("rows", absl::StrCat("are ", *count, " from ", received_rows_,
                                             " on, but x has ", split_.rows, " rows"));
  }
  if (*count == 0 && !chunk.last()) return InvalidField("rows", "are none, and not the last");
  if (*count < missing && chunk.last()) {
    return InvalidField("rows.last", absl::StrCat("comes after ", received_rows_ + *count,
                                                  " rows, but x has ", split_.rows));
  }
  *rows = *count;
  return absl::OkStatus();
}

void ChunkedRequest::Pump() {
  while (true) {
    std::unique_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      const std::optional<int64_t> rows = NextJobRows();
      if (!rows.has_value()) return;
      job = MakeJob(*rows);
    }
    stream_.JobStarts();
    const absl::Status status = context_.scheduler.Submit(job);
    if (status.ok()) continue;
    {
      const std::lock_guard lock(mutex_);
      --running_jobs_;
      EndLocked(status);
    }
    job.reset();
    stream_.JobEnded(/*here=*/true);
  }
}

std::optional<int64_t> ChunkedRequest::NextJobRows() const {
  if (!error_.ok()) return std::nullopt;
  if (!overlapping_ || split_.rows == 0) {
    if (upload_open_ || started_jobs_ > 0) return std::nullopt;
    return split_.rows;
  }
  const int64_t rows = std::min(queue_->rows(), job_rows_) / split_.unit_rows * split_.unit_rows;
  if (rows == 0) return std::nullopt;
  const int64_t bytes = ProblemBytes(RowsOf(problem_, rows, started_jobs_ == 0));
  if (window_bytes_ > 0 && window_bytes_ + bytes > context_.stream.window_bytes) {
    return std::nullopt;
  }
  return rows;
}

std::unique_ptr<Job> ChunkedRequest::MakeJob(int64_t rows) {
  auto piece = std::make_shared<Piece>();
  piece->first_row = started_rows_;
  piece->rows = rows;
  piece->problem = overlapping_ ? RowsOf(problem_, rows, started_jobs_ == 0) : problem_;
  piece->window_bytes = ProblemBytes(piece->problem);
  auto job = std::make_unique<Job>();
  job->problem = piece->problem;
  job->inputs = parameters_;
  RowQueue::Owners owners;
  if (overlapping_) owners = queue_->Take(rows, &job->inputs);
  if (const auto assembly = std::move(assembly_); assembly != nullptr) assembly->MoveTo(job.get());
  job->flow = flow_;
  job->priority = priority_;
  job->deadline = deadline_;
  job->received = context_.clock.Now();
  job->cancelled = cancelled_;
  job->reserved = true;
  job->done = [self = shared_from_this(), piece,
               owners = std::move(owners)](JobResult result) mutable {
    Stream& stream = self->stream_;
    self->OnJobDone(*piece, std::move(result));
    self.reset();
    stream.JobEnded(/*here=*/false);
  };
  started_rows_ += rows;
  ++started_jobs_;
  ++running_jobs_;
  window_bytes_ += piece->window_bytes;
  pieces_.push_back(std::move(piece));
  return job;
}

void ChunkedRequest::OnJobDone(Piece& piece, JobResult result) {
  const std::lock_guard lock(mutex_);
  --running_jobs_;
  if (error_.ok() && !result.status.ok()) EndLocked(result.status);
  ReleaseIfIdle();
  if (!error_.ok()) return;
  last_progress_ = context_.clock.Now();
  JobTiming& sum = final_.timing;
  const JobTiming& one = result.timing;
  sum.queue += one.queue;
  sum.copy_in += one.copy_in;
  sum.kernel += one.kernel;
  sum.copy_out += one.copy_out;
  sum.device = one.device;
  sum.batch_requests = one.batch_requests;
  sum.batch_rows = one.batch_rows;
  exchange_.RecordLaunch(one, piece.first_row, piece.rows);
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (piece.problem.outputs.Has(role) && !TravelsInRows(problem_.op, role)) {
      final_.outputs[i] = std::move(result.outputs[i]);
    }
  }
  piece.result = std::move(result);
  piece.done = true;
}

void ChunkedRequest::End(const absl::Status& status, bool close_upload) {
  {
    const std::lock_guard lock(mutex_);
    if (close_upload) upload_open_ = false;
    if (!final_taken_) EndLocked(status);
  }
  context_.scheduler.ReapQueue();
}

void ChunkedRequest::EndUpload() {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(upload_open_, false)) return;
    if (!final_taken_) {
      EndLocked(InvalidField("rows", absl::StrCat("ended with the stream after ", received_rows_,
                                                  " of ", split_.rows, " rows")));
    }
  }
  context_.scheduler.ReapQueue();
}

void ChunkedRequest::EndLocked(const absl::Status& status) {
  if (!error_.ok()) return;
  error_ = status;
  cancelled_->store(true, std::memory_order_relaxed);
  if (queue_.has_value()) queue_->Clear();
  assembly_.reset();
  pieces_.clear();
  ReleaseIfIdle();
}

void ChunkedRequest::ReleaseIfIdle() {
  if (error_.ok() || running_jobs_ > 0) return;
  final_ = JobResult();
  header_->bytes = wire::ReceivedMessage();
  reservation_.reset();
}

absl::Time ChunkedRequest::NextTimeout(bool reading) const {
  const std::lock_guard lock(mutex_);
  if (final_taken_ || !error_.ok()) return absl::InfiniteFuture();
  if (!upload_open_ || !reading) return deadline_;
  return std::min(deadline_, last_progress_ + context_.stream.stall_timeout);
}

void ChunkedRequest::Expire(absl::Time now, bool reading) {
  if (NextTimeout(reading) > now) return;
  End(Expiry(now), /*close_upload=*/false);
}

absl::Status ChunkedRequest::Expiry(absl::Time now) const {
  const std::lock_guard lock(mutex_);
  context_.metrics.RecordDeadlineExceeded(upload_open_ ? Stage::kDecode : Stage::kSend);
  if (deadline_ <= now) {
    return absl::DeadlineExceededError(absl::StrCat("deadline passed with ", received_rows_, " of ",
                                                    split_.rows, " rows received"));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("no rows came for ", absl::FormatDuration(context_.stream.stall_timeout),
                   " after ", received_rows_, " of ", split_.rows));
}

int64_t ChunkedRequest::held_up_bytes() const {
  const std::lock_guard lock(mutex_);
  if (!overlapping_ || queue_->rows() < split_.unit_rows) return 0;
  return queue_->bytes();
}

bool ChunkedRequest::upload_open() const {
  const std::lock_guard lock(mutex_);
  return upload_open_;
}

bool ChunkedRequest::awaits_rows() const {
  const std::lock_guard lock(mutex_);
  return upload_open_ && error_.ok();
}

bool ChunkedRequest::closed() const {
  const std::lock_guard lock(mutex_);
  return final_taken_ && !upload_open_;
}

}  // namespace norm::server
