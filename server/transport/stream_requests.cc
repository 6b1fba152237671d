#include "server/transport/stream_requests.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/codec/message_writer.h"
#include "server/transport/field_error.h"

namespace norm::server {

/// A request that came in one message. Its job's completion holds it, so that the slices the job
/// borrows from live until then.
struct StreamRequests::WholeRequest {
  WholeRequest(const ServingContext& context, CallTrace& trace, uint64_t flow,
               std::shared_ptr<StreamMessage> from)
      : message(std::move(from)),
        exchange(context, trace, trace.NewRequestSpan(id(), message->received), flow,
                 message->received) {}

  uint64_t id() const { return message->request.id(); }

  std::shared_ptr<StreamMessage> message;
  Exchange exchange;
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
};

StreamRequests::~StreamRequests() = default;

void StreamRequests::Begin(uint64_t flow, absl::Time deadline) {
  flow_ = flow;
  deadline_ = deadline;
  const std::lock_guard lock(mutex_);
  unsent_.SetFlow(flow);
}

void StreamRequests::Accept(std::shared_ptr<StreamMessage> message) {
  const norm::v1::StreamRequest& request = message->request;
  if (request.has_rows() && !request.chunked()) return AcceptRows(message);
  if (request.has_cancel() && !request.chunked()) return AcceptCancel(request.id());
  if (!CheckNewId(request.id())) return;
  absl::Time deadline = deadline_;
  if (const uint64_t timeout_us = request.timeout_us(); timeout_us != 0) {
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    const auto timeout = absl::Microseconds(static_cast<int64_t>(std::min(timeout_us, kMax)));
    deadline = std::min(deadline, message->received + timeout);
  }
  if (request.chunked()) {
    AcceptHeader(std::move(message), deadline);
  } else {
    AcceptWhole(std::move(message), deadline);
  }
}

bool StreamRequests::CheckNewId(uint64_t id) {
  if (const std::shared_ptr<ChunkedRequest> chunked = FindChunked(id); chunked != nullptr) {
    context_.metrics.RecordRejected(RejectReason::kInvalid);
    chunked->End(InvalidField("id", absl::StrCat(id, " is that of a chunked request in flight")),
                 /*close_upload=*/false);
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return false;
    if (!whole_.contains(id)) return true;
  }
  context_.metrics.RecordRejected(RejectReason::kInvalid);
  Refuse(id, InvalidField("id", absl::StrCat(id, " is still in flight on this stream")));
  return false;
}

void StreamRequests::AcceptRows(const std::shared_ptr<StreamMessage>& message) {
  const uint64_t id = message->request.id();
  const std::shared_ptr<ChunkedRequest> chunked = FindChunked(id);
  if (chunked == nullptr) {
    context_.metrics.RecordRejected(RejectReason::kInvalid);
    return Refuse(id, InvalidField("id", absl::StrCat(id, " has no chunked request in flight")));
  }
  chunked->Accept(message);
  const std::lock_guard lock(mutex_);
  DropClosed();
}

void StreamRequests::AcceptCancel(uint64_t id) {
  if (const std::shared_ptr<ChunkedRequest> chunked = FindChunked(id); chunked != nullptr) {
    chunked->End(absl::CancelledError("the client cancelled the request"), /*close_upload=*/true);
    const std::lock_guard lock(mutex_);
    return DropClosed();
  }
  {
    const std::lock_guard lock(mutex_);
    const auto found = whole_.find(id);
    if (found == whole_.end()) return;
    found->second->store(true, std::memory_order_relaxed);
  }
  context_.scheduler.ReapQueue();
}

void StreamRequests::AcceptHeader(std::shared_ptr<StreamMessage> message, absl::Time deadline) {
  const uint64_t id = message->request.id();
  const auto request = std::make_shared<ChunkedRequest>(context_, trace_, stream_,
                                                        std::move(message), flow_, deadline);
  {
    const std::lock_guard lock(mutex_);
    if (static_cast<int64_t>(chunked_.size()) >= context_.stream.max_uploads) {
      context_.metrics.RecordRejected(RejectReason::kTooLarge);
      const absl::Status status = absl::ResourceExhaustedError(
          absl::StrCat("the stream has ", chunked_.size(),
                       " chunked requests in flight, the limit max_stream_uploads is ",
                       context_.stream.max_uploads));
      context_.metrics.RecordError(context_.clock.Now(), trace_.name(), status);
      return EnqueueLocked(ErrorResponse(id, status));
    }
    chunked_.push_back(request);
  }
  request->Open();
}

void StreamRequests::AcceptWhole(std::shared_ptr<StreamMessage> message, absl::Time deadline) {
  const auto one = std::make_shared<WholeRequest>(context_, trace_, flow_, std::move(message));
  const norm::v1::StreamRequest& request = one->message->request;
  {
    const std::lock_guard lock(mutex_);
    whole_.emplace(one->id(), one->cancelled);
  }
  auto done = [this, one](JobResult result) {
    ChunkedRequest::Stream& stream = stream_;
    const bool here = SentAtOnce(result);
    OnJobDone(*one, std::move(result));
    stream.JobEnded(here);
  };
  stream_.JobStarts();
  absl::Status status;
  switch (request.body_case()) {
    case norm::v1::StreamRequest::kForward:
      status = one->exchange.Submit(request.forward(), one->message->bytes, deadline,
                                    one->cancelled, std::move(done));
      break;
    case norm::v1::StreamRequest::kBackward:
      status = one->exchange.Submit(request.backward(), one->message->bytes, deadline,
                                    one->cancelled, std::move(done));
      break;
    default:
      status = InvalidField("body", "is missing: one of forward, backward must be set");
      break;
  }
  if (!status.ok()) {
    Complete(*one, status, ErrorResponse(one->id(), status));
    stream_.JobEnded(/*here=*/true);
  }
}

void StreamRequests::OnJobDone(WholeRequest& one, JobResult result) {
  one.message->bytes = wire::ReceivedMessage();
  one.exchange.RecordJob(result.timing);
  if (!result.status.ok()) {
    return Complete(one, result.status, ErrorResponse(one.id(), result.status));
  }
  const absl::Time start = context_.clock.Now();
  if (one.cancelled->load(std::memory_order_relaxed) || one.exchange.expired(start)) {
    const absl::Status left(one.exchange.RecordLeft(), "nobody waits for the result any more");
    return Complete(one, left, ErrorResponse(one.id(), left));
  }
  const norm::v1::StreamRequest& request = one.message->request;
  norm::v1::StreamResponse response;
  response.set_id(one.id());
  wire::MessageWriter writer;
  if (request.has_forward()) {
    one.exchange.Respond(request.forward(), std::move(result), &writer, response.mutable_forward());
  } else {
    one.exchange.Respond(request.backward(), std::move(result), &writer,
                         response.mutable_backward());
  }
  absl::StatusOr<grpc::ByteBuffer> bytes = writer.Build(response);
  one.exchange.RecordStage(Stage::kEncode, start, context_.clock.Now() - start);
  if (bytes.ok()) return Complete(one, absl::OkStatus(), *bytes);
  const absl::Status error =
      absl::InternalError(absl::StrCat("encoding: ", bytes.status().message()));
  Complete(one, error, ErrorResponse(one.id(), error));
}

void StreamRequests::Complete(WholeRequest& one, const absl::Status& status,
                              const grpc::ByteBuffer& response) {
  one.exchange.RecordEnd(
      one.message->request.has_backward() ? Direction::kBackward : Direction::kForward, status,
      one.id());
  const std::lock_guard lock(mutex_);
  whole_.erase(one.id());
  EnqueueLocked(response, one.exchange.TakeSpan());
}

void StreamRequests::Refuse(uint64_t id, const absl::Status& status) {
  context_.metrics.RecordError(context_.clock.Now(), trace_.name(), status);
  const std::lock_guard lock(mutex_);
  EnqueueLocked(ErrorResponse(id, status));
}

void StreamRequests::EnqueueLocked(const grpc::ByteBuffer& response,
                                   std::unique_ptr<SpanRecord> span) {
  if (broken_) return trace_.Record(std::move(span), context_.clock.Now(), /*sent=*/false);
  const auto size_bytes = static_cast<int64_t>(response.Length());
  unsent_bytes_ += size_bytes;
  unsent_.Hold(size_bytes);
  outbox_.push_back({response, size_bytes, 0, nullptr, std::move(span)});
}

std::shared_ptr<ChunkedRequest> StreamRequests::FindChunked(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  for (const auto& request : chunked_) {
    if (request->id() == id) return request;
  }
  return nullptr;
}

StreamRequests::Chunked StreamRequests::AllChunked() const {
  const std::lock_guard lock(mutex_);
  return chunked_;
}

void StreamRequests::DropClosed() {
  std::erase_if(chunked_, [](const auto& request) { return request->closed(); });
}

std::optional<StreamRequests::Outgoing> StreamRequests::TakeOutgoing() {
  const std::lock_guard lock(mutex_);
  Outgoing outgoing;
  if (!outbox_.empty()) {
    outgoing = std::move(outbox_.front());
    outbox_.pop_front();
    unsent_.StartHeldWrite(outgoing.size_bytes);
    return outgoing;
  }
  for (size_t i = 0; i < chunked_.size(); ++i) {
    std::optional<ChunkedRequest::Message> message = chunked_[i]->TakeMessage();
    if (!message.has_value()) continue;
    outgoing.bytes.Swap(&message->bytes);
    unsent_.StartWrite(static_cast<int64_t>(outgoing.bytes.Length()));
    outgoing.window_bytes = message->window_bytes;
    outgoing.span = std::move(message->span);
    outgoing.request = chunked_[i];
    const auto at = chunked_.begin() + static_cast<std::ptrdiff_t>(i);
    std::rotate(at, at + 1, chunked_.end());
    DropClosed();
    return outgoing;
  }
  return std::nullopt;
}

void StreamRequests::OnWritten(const Outgoing& written) {
  {
    const std::lock_guard lock(mutex_);
    unsent_.EndWrite();
    unsent_bytes_ -= written.size_bytes;
  }
  if (written.request != nullptr) written.request->OnWritten(written.window_bytes);
}

bool StreamRequests::MayRead() const {
  const std::lock_guard lock(mutex_);
  const auto unanswered = static_cast<int64_t>(whole_.size() + outbox_.size());
  if (unanswered >= context_.stream.max_requests ||
      unsent_bytes_ >= context_.stream.max_unsent_bytes) {
    return false;
  }
  int64_t all_bytes = 0;
  for (const auto& request : chunked_) {
    const int64_t bytes = request->held_up_bytes();
    if (bytes >= context_.stream.window_bytes) return false;
    all_bytes += bytes;
  }
  return all_bytes < 2 * context_.stream.window_bytes;
}

bool StreamRequests::AnyUploadOpen() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(chunked_.begin(), chunked_.end(),
                     [](const auto& request) { return request->upload_open(); });
}

bool StreamRequests::AnyAwaitsRows() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(chunked_.begin(), chunked_.end(),
                     [](const auto& request) { return request->awaits_rows(); });
}

bool StreamRequests::Idle() const {
  const std::lock_guard lock(mutex_);
  return whole_.empty() && outbox_.empty() && chunked_.empty();
}

void StreamRequests::EndUploads() {
  for (const auto& request : AllChunked()) request->EndUpload();
  const std::lock_guard lock(mutex_);
  DropClosed();
}

void StreamRequests::Break() {
  Chunked chunked;
  {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    int64_t dropped_bytes = 0;
    for (Outgoing& response : outbox_) {
      dropped_bytes += response.size_bytes;
      trace_.Record(std::move(response.span), context_.clock.Now(), /*sent=*/false);
    }
    unsent_bytes_ -= dropped_bytes;
    unsent_.Drop(dropped_bytes);
    outbox_.clear();
    for (const auto& [id, cancelled] : whole_) cancelled->store(true, std::memory_order_relaxed);
    chunked = std::exchange(chunked_, {});
  }
  for (const auto& request : chunked) request->Abandon();
  context_.scheduler.ReapQueue();
}

void StreamRequests::Expire(absl::Time now, bool reading) {
  for (const auto& request : AllChunked()) request->Expire(now, reading);
}

absl::Time StreamRequests::NextTimeout(bool reading) const {
  absl::Time next = absl::InfiniteFuture();
  const std::lock_guard lock(mutex_);
  for (const auto& request : chunked_) next = std::min(next, request->NextTimeout(reading));
  return next;
}

}  // namespace norm::server
