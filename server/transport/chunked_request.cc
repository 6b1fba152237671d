#include "server/transport/chunked_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/codec/message_writer.h"
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

ChunkedRequest::ChunkedRequest(const ServingContext& context, Stream& stream,
                               std::shared_ptr<StreamMessage> header, uint64_t flow,
                               absl::Time deadline)
    : context_(context),
      stream_(stream),
      header_(std::move(header)),
      flow_(flow),
      deadline_(deadline),
      exchange_(context, flow, header_->received),
      last_progress_(header_->received) {}

Direction ChunkedRequest::direction() const {
  return header_->request.has_backward() ? Direction::kBackward : Direction::kForward;
}

void ChunkedRequest::Open() {
  const std::lock_guard lock(mutex_);
  absl::Status status = Decode();
  if (status.ok()) status = Reserve();
  if (!status.ok()) EndLocked(status);
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

absl::Status ChunkedRequest::Reserve() {
  split_ = SplitRows(problem_);
  overlapping_ = RowsAreIndependent(problem_);
  columns_ = RowColumns(problem_);
  queue_.emplace(columns_);
  const int64_t in_bytes = BytesPerRow(problem_, problem_.inputs);
  const int64_t out_bytes = BytesPerRow(problem_, problem_.outputs);
  if (split_.rows > 0 && std::max(in_bytes, out_bytes) > context_.decode.max_output_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a row of the tensors takes ", std::max(in_bytes, out_bytes),
                     " bytes > max_message_bytes ", context_.decode.max_output_bytes));
  }
  message_rows_ = RowsFor(kMessageBytes, out_bytes, 1);
  job_rows_ = overlapping_ ? RowsFor(std::min(kJobBytes, context_.stream.window_bytes),
                                     in_bytes + out_bytes, split_.unit_rows)
                           : split_.rows;
  const int64_t job_bytes =
      overlapping_ ? ProblemBytes(RowsOf(problem_, std::min(job_rows_, split_.rows), true))
                   : ProblemBytes(problem_);
  const int64_t bytes = overlapping_ ? std::min(ProblemBytes(problem_),
                                                std::max(context_.stream.window_bytes, job_bytes))
                                     : job_bytes;
  absl::StatusOr<std::unique_ptr<Reservation>> reservation =
      context_.scheduler.Reserve(flow_, bytes, job_bytes);
  if (!reservation.ok()) return reservation.status();
  reservation_ = *std::move(reservation);
  return absl::OkStatus();
}

void ChunkedRequest::Accept(std::shared_ptr<const StreamMessage> message) {
  if (Take(std::move(message)).ok()) {
    Pump();
  } else {
    context_.scheduler.ReapQueue();
  }
}

absl::Status ChunkedRequest::Take(std::shared_ptr<const StreamMessage> message) {
  const std::lock_guard lock(mutex_);
  int64_t rows = 0;
  const bool last = message->request.rows().last();
  if (error_.ok()) {
    if (absl::Status status = Check(*message, &rows); !status.ok()) {
      context_.metrics.RecordRejected(RejectReason::kInvalid);
      EndLocked(status);
    }
  }
  if (last) upload_open_ = false;
  if (!error_.ok()) return error_;
  last_progress_ = message->received;
  received_rows_ += rows;
  exchange_.CountBytes(rows * BytesPerRow(problem_, problem_.inputs), 0);
  queue_->Push(std::move(message), rows);
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
    stream_.JobEnded(/*here=*/true);
  }
}

std::optional<int64_t> ChunkedRequest::NextJobRows() const {
  if (!error_.ok()) return std::nullopt;
  const int64_t waiting = queue_->rows();
  if (!overlapping_ || split_.rows == 0) {
    if (upload_open_ || started_jobs_ > 0) return std::nullopt;
    return waiting;
  }
  const int64_t rows = std::min(waiting, job_rows_) / split_.unit_rows * split_.unit_rows;
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
  RowQueue::Owners owners = queue_->Take(rows, &job->inputs);
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

bool ChunkedRequest::Finished() const {
  return !upload_open_ && started_jobs_ > 0 && started_rows_ == split_.rows && pieces_.empty();
}

bool ChunkedRequest::HasMessage() const {
  const std::lock_guard lock(mutex_);
  if (final_taken_) return false;
  return !error_.ok() || Finished() || (!pieces_.empty() && pieces_.front()->done);
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
  exchange_.CountBytes(0, rows * BytesPerRow(problem_, problem_.outputs));
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
      exchange_.RecordEnd(direction(), absl::StatusCode::kOk);
      return {*std::move(bytes), 0};
    }
    EndLocked(absl::InternalError(absl::StrCat("encoding: ", bytes.status().message())));
  }
  exchange_.RecordEnd(direction(), error_.code());
  return {ErrorResponse(id(), error_), 0};
}

void ChunkedRequest::Abandon() {
  const std::lock_guard lock(mutex_);
  upload_open_ = false;
  if (error_.ok()) EndLocked(absl::Status(exchange_.RecordLeft(), "the client has gone"));
  if (std::exchange(final_taken_, true)) return;
  exchange_.RecordEnd(direction(), error_.code());
}

void ChunkedRequest::OnWritten(int64_t window_bytes) {
  {
    const std::lock_guard lock(mutex_);
    window_bytes_ -= window_bytes;
    last_progress_ = context_.clock.Now();
  }
  Pump();
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

bool ChunkedRequest::closed() const {
  const std::lock_guard lock(mutex_);
  return final_taken_ && !upload_open_;
}

}  // namespace norm::server
