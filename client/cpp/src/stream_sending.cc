// The way out of a NormalizeStream: requests in line, and what leaves next.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "request_encoder.h"
#include "stream_impl.h"
#include "timeout.h"

namespace norm::client {

void NormalizeStream::Impl::Submit(const ForwardRequest& request, absl::Duration timeout,
                                   ForwardCallback done) {
  wire::MessageWriter writer;
  norm::v1::StreamRequest message;
  const absl::Status status = Encode(request, &writer, message.mutable_forward());
  if (!status.ok()) return done(status);
  SubmitEncoded(std::move(message), std::move(writer), timeout, Callback(std::move(done)), {});
}

void NormalizeStream::Impl::Submit(const BackwardRequest& request, absl::Duration timeout,
                                   BackwardCallback done) {
  wire::MessageWriter writer;
  norm::v1::StreamRequest message;
  const absl::Status status = Encode(request, &writer, message.mutable_backward());
  if (!status.ok()) return done(status);
  SubmitEncoded(std::move(message), std::move(writer), timeout, Callback(std::move(done)), {});
}

void NormalizeStream::Impl::SubmitEncoded(norm::v1::StreamRequest message,
                                          wire::MessageWriter writer, absl::Duration timeout,
                                          const Callback& done, const CallOptions& options) {
  absl::StatusOr<absl::Time> deadline = DeadlineAfter(timeout);
  if (!deadline.ok()) return Fail(done, deadline.status());
  const uint64_t id = next_id_.fetch_add(1, std::memory_order_relaxed);
  message.set_id(id);
  message.set_timeout_us(
      static_cast<uint64_t>(std::max<int64_t>(1, absl::ToInt64Microseconds(timeout))));
  Pending pending{.deadline = *deadline, .done = done, .progress = options.progress};
  grpc::ByteBuffer buffer;
  if (BytesInRows(message) > options_.chunks.above_bytes) {
    absl::StatusOr<std::unique_ptr<RowTransfer>> rows =
        RowTransfer::Of(std::move(message), std::move(writer), options_.chunks);
    if (!rows.ok()) return Fail(done, rows.status());
    pending.rows = *std::move(rows);
    if (pending.progress != nullptr) pending.progress->total_bytes = pending.rows->total_bytes();
  } else {
    absl::StatusOr<grpc::ByteBuffer> whole = writer.Build(message);
    if (!whole.ok()) return Fail(done, whole.status());
    buffer = *std::move(whole);
  }
  const absl::Status status = Enqueue(id, buffer, std::move(pending));
  if (!status.ok()) Fail(done, status);
}

absl::Status NormalizeStream::Impl::Enqueue(uint64_t id, const grpc::ByteBuffer& buffer,
                                            Pending pending) {
  const absl::Time deadline = pending.deadline;
  {
    std::unique_lock lock(mutex_);
    if (!OnOwnThread()) {
      const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return unsent_bytes_ + writing_bytes_ <= options_.max_unsent_bytes || ended_ ||
               half_close_wanted_;
      };
      if (!changed_.wait_until(lock, absl::ToChronoTime(deadline), has_room)) {
        return absl::DeadlineExceededError(absl::StrCat("the deadline passed while ", unsent_bytes_,
                                                        " bytes were waiting to be sent"));
      }
    }
    if (absl::Status refusal = Refusal(); !refusal.ok()) return refusal;
    if (pending.rows != nullptr) {
      uploads_.push_back(id);
      StartHelpers();
    } else {
      unsent_bytes_ += static_cast<int64_t>(buffer.Length());
      unsent_.push_back(Unsent{id, buffer});
    }
    pending_.emplace(id, std::move(pending));
    if (deadline < awake_at_) Kick();
  }
  Send();
  return absl::OkStatus();
}

void NormalizeStream::Impl::Send() {
  std::optional<grpc::ByteBuffer> buffer;
  {
    const std::lock_guard lock(mutex_);
    if (!started_ || writing_ || write_broken_ || half_closed_ || finishing_) return;
    buffer = NextMessage();
    if (!buffer.has_value()) {
      if (!half_close_wanted_ || !uploads_.empty()) return;
      half_closed_ = true;
      ++outstanding_;
      call_->WritesDone(reinterpret_cast<void*>(kWritesDone));
      return;
    }
    writing_ = true;
    writing_bytes_ = static_cast<int64_t>(buffer->Length());
    ++outstanding_;
  }
  // Without the mutex: it may copy megabytes into the socket.
  call_->Write(*buffer, reinterpret_cast<void*>(kWritten));
}

std::optional<grpc::ByteBuffer> NormalizeStream::Impl::NextMessage() {
  while (!unsent_.empty()) {
    Unsent next = std::move(unsent_.front());
    unsent_.pop_front();
    unsent_bytes_ -= static_cast<int64_t>(next.buffer.Length());
    if (!next.cancel && !pending_.contains(next.id)) continue;  // expired before it left
    return std::move(next.buffer);
  }
  for (size_t tries = uploads_.size(); tries > 0; --tries) {
    const uint64_t id = uploads_.front();
    uploads_.pop_front();
    const auto found = pending_.find(id);
    if (found == pending_.end()) continue;  // ended early
    Pending& pending = found->second;
    RowTransfer& rows = *pending.rows;
    const bool begins = !rows.upload_open();
    if (!rows.MaySend() || (begins && open_transfers_ >= options_.max_uploads)) {
      uploads_.push_back(id);
      continue;
    }
    if (begins) ++open_transfers_;
    absl::StatusOr<grpc::ByteBuffer> buffer = rows.NextMessage();
    if (!buffer.ok()) {
      // A row or a header that no message holds; the thread tells, as it does of late requests.
      pending.deadline = absl::InfinitePast();
      pending.failure = buffer.status();
      Kick();
      continue;
    }
    if (!rows.all_sent()) uploads_.push_back(id);
    if (pending.progress != nullptr) pending.progress->sent_bytes = rows.sent_bytes();
    return *std::move(buffer);
  }
  return std::nullopt;
}

NormalizeStream::Impl::Pending NormalizeStream::Impl::Remove(uint64_t id) {
  const auto found = pending_.find(id);
  Pending pending = std::move(found->second);
  pending_.erase(found);
  if (pending.rows == nullptr) return pending;
  if (pending.rows->upload_open()) {
    norm::v1::StreamRequest cancel;
    cancel.set_id(id);
    cancel.mutable_cancel();
    absl::StatusOr<grpc::ByteBuffer> buffer = wire::MessageWriter().Build(cancel);
    if (buffer.ok()) {
      unsent_bytes_ += static_cast<int64_t>(buffer->Length());
      unsent_.push_back(Unsent{id, *std::move(buffer), /*cancel=*/true});
    }
  }
  if (pending.rows->upload_open() || pending.rows->all_sent()) --open_transfers_;
  return pending;
}

}  // namespace norm::client
