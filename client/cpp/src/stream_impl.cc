#include "stream_impl.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "call_status.h"
#include "proto/codec/message_reader.h"
#include "request_encoder.h"
#include "result_decoder.h"
#include "timeout.h"

namespace norm::client {
namespace {

/// Threads beside the stream's own while tensors travel in rows: the bytes of one connection pass
/// through whoever polls, about 0.5 s a GiB for each of sending, receiving and copying.
constexpr int kHelpers = 2;
constexpr char kMethod[] = "/norm.v1.NormalizationService/NormalizeStream";

template <typename Result>
absl::StatusOr<Result> WithSize(absl::StatusOr<Result> result, int64_t message_bytes) {
  if (result.ok()) result->message_bytes = message_bytes;
  return result;
}

/// The stream for which this thread runs.
thread_local const void* running_for = nullptr;

}  // namespace

NormalizeStream::Impl::Impl(std::shared_ptr<grpc::Channel> channel, const StreamOptions& options,
                            CallMetadata metadata)
    : options_(options),
      metadata_(std::move(metadata)),
      channel_(std::move(channel)),
      request_id_(RequestIdOf({}, metadata_)) {
  AddTo(context_, metadata_);
  grpc::GenericStub stub(channel_);
  call_ = stub.PrepareCall(&context_, kMethod, &queue_);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    const std::lock_guard lock(mutex_);
    ended_ = closed_ = true;
    final_status_ = absl::ResourceExhaustedError(
        absl::StrCat("no thread can be started for it: ", error.what()));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ++outstanding_;
  }
  call_->StartCall(reinterpret_cast<void*>(kStarted));
}

NormalizeStream::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      cancelled_ = true;
      context_.TryCancel();
    }
  }
  if (thread_.joinable()) thread_.join();
  for (std::thread& helper : helpers_) helper.join();
}

bool NormalizeStream::Impl::OnOwnThread() const { return running_for == this; }

void NormalizeStream::Impl::StartHelpers() {
  try {
    while (static_cast<int>(helpers_.size()) < kHelpers) helpers_.emplace_back([this] { Run(); });
  } catch (const std::system_error&) {
    // They only make it faster.
  }
}

void NormalizeStream::Impl::Fail(const Callback& done, const absl::Status& status) const {
  std::string request_id;
  {
    const std::lock_guard lock(mutex_);
    request_id = request_id_;
  }
  const absl::Status named = WithRequestId(status, request_id);
  std::visit([&](const auto& callback) { callback(named); }, done);
}

void NormalizeStream::Impl::TakeRequestId() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(request_id_taken_, true)) return;
  request_id_ = RequestIdOf(context_.GetServerInitialMetadata(), metadata_);
}

absl::Status NormalizeStream::Impl::Refusal() const {
  if (ended_) {
    // Another stream would be refused just so.
    if (absl::IsUnauthenticated(final_status_) || absl::IsPermissionDenied(final_status_)) {
      return final_status_;
    }
    return absl::UnavailableError(absl::StrCat("the stream has ended: ", final_status_.message()));
  }
  if (half_close_wanted_)
    return absl::FailedPreconditionError("the stream was finished: it takes no more requests");
  return absl::OkStatus();
}

absl::Status NormalizeStream::Impl::status() const {
  const std::lock_guard lock(mutex_);
  return Refusal();
}

absl::Status NormalizeStream::Impl::Finish(absl::Duration timeout) {
  absl::StatusOr<absl::Time> deadline = DeadlineAfter(timeout);
  if (!deadline.ok()) return deadline.status();
  {
    const std::lock_guard lock(mutex_);
    half_close_wanted_ = true;
    changed_.notify_all();
  }
  Send();
  std::unique_lock lock(mutex_);
  const auto closed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_; };
  if (!changed_.wait_until(lock, absl::ToChronoTime(*deadline), closed)) {
    cancelled_ = true;
    context_.TryCancel();
    return absl::DeadlineExceededError(
        absl::StrCat("the stream did not end within ", absl::FormatDuration(timeout)));
  }
  return final_status_;
}

int64_t NormalizeStream::Impl::in_flight() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(pending_.size());
}

void NormalizeStream::Impl::StartRead() {
  ++outstanding_;
  call_->Read(&incoming_, reinterpret_cast<void*>(kRead));
}

void NormalizeStream::Impl::StartFinish() {
  if (finishing_) return;
  finishing_ = true;
  ++outstanding_;
  call_->Finish(&grpc_status_, reinterpret_cast<void*>(kFinished));
}

void NormalizeStream::Impl::Kick() {
  if (kicked_ || closed_) return;
  kicked_ = true;
  ++outstanding_;
  alarm_.Set(&queue_, gpr_time_0(GPR_CLOCK_MONOTONIC), reinterpret_cast<void*>(kKicked));
}

void NormalizeStream::Impl::Run() {
  running_for = this;
  while (true) {
    const absl::Time wake = ExpireRequests();
    void* tag = nullptr;
    bool ok = false;
    const auto result = wake == absl::InfiniteFuture()
                            ? queue_.AsyncNext(&tag, &ok, gpr_inf_future(GPR_CLOCK_REALTIME))
                            : queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(wake));
    if (result == grpc::CompletionQueue::SHUTDOWN) return;
    if (result == grpc::CompletionQueue::TIMEOUT) continue;
    Handle(static_cast<Event>(reinterpret_cast<intptr_t>(tag)), ok);
    const std::lock_guard lock(mutex_);
    if (closed_ && outstanding_ == 0 && !std::exchange(shut_down_, true)) queue_.Shutdown();
  }
}

void NormalizeStream::Impl::Handle(Event event, bool ok) {
  if (event == kFinished) return Close();
  std::optional<Incoming> rows;
  if (event == kRead && ok) {
    const grpc::ByteBuffer message = incoming_;
    incoming_.Clear();
    TakeRequestId();
    // Before the next read: what has come is taken in order, whichever threads do it.
    rows = Receive(message);
  }
  {
    const std::lock_guard lock(mutex_);
    --outstanding_;
    switch (event) {
      case kStarted:
        started_ = true;
        ok ? StartRead() : StartFinish();
        break;
      case kRead:  // false when the server sends no more
        ok ? StartRead() : StartFinish();
        break;
      case kWritten:
        writing_ = false;
        writing_bytes_ = 0;
        write_broken_ = !ok;
        changed_.notify_all();
        break;
      case kKicked:
        kicked_ = false;
        break;
      case kWritesDone:
      case kFinished:
        break;
    }
  }
  Send();
  if (rows.has_value()) CopyRows(*rows);
}

std::optional<NormalizeStream::Impl::Incoming> NormalizeStream::Impl::Receive(
    const grpc::ByteBuffer& buffer) {
  Incoming incoming;
  auto received = std::make_shared<wire::ReceivedMessage>();
  if (absl::Status status = received->Parse(buffer, &incoming.response); !status.ok()) {
    // Which request it answers is unknown: those in flight end by their deadlines.
    return std::nullopt;
  }
  incoming.received = std::move(received);
  Pending pending;
  {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(incoming.response.id());
    if (found == pending_.end()) return std::nullopt;  // expired before the answer came
    Pending& waiting = found->second;
    waiting.message_bytes += static_cast<int64_t>(buffer.Length());
    incoming.transfer = waiting.rows;
    incoming.progress = waiting.progress;
    const bool final = !incoming.response.has_rows();
    if (final && waiting.rows != nullptr && !waiting.rows->all_copied()) {
      waiting.final = std::make_shared<Incoming>(std::move(incoming));
      return std::nullopt;
    }
    if (final) pending = Remove(incoming.response.id());
  }
  if (incoming.response.has_rows()) return PlaceRows(std::move(incoming));
  Send();
  const std::lock_guard callbacks(callbacks_);
  Complete(incoming.received, incoming.response, pending);
  return std::nullopt;
}

std::optional<NormalizeStream::Impl::Incoming> NormalizeStream::Impl::PlaceRows(Incoming incoming) {
  const absl::StatusOr<int64_t> first_row =
      incoming.transfer != nullptr
          ? incoming.transfer->Place(*incoming.received, incoming.response.rows())
          : absl::InternalError("the server sent rows for a request that has none");
  Pending failed;
  {
    const std::lock_guard lock(mutex_);
    if (first_row.ok()) {
      ++copying_;
      incoming.first_row = *first_row;
      return incoming;
    }
    if (!pending_.contains(incoming.response.id())) return std::nullopt;
    failed = Remove(incoming.response.id());
  }
  const std::lock_guard callbacks(callbacks_);
  Fail(failed.done, first_row.status());
  return std::nullopt;
}

void NormalizeStream::Impl::CopyRows(const Incoming& rows) {
  rows.transfer->Copy(*rows.received, rows.response.rows(), rows.first_row);
  if (rows.progress != nullptr) rows.progress->returned = rows.transfer->returned();
  std::optional<Pending> done;
  {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(rows.response.id());
    if (found != pending_.end() && found->second.final != nullptr && rows.transfer->all_copied()) {
      done = Remove(rows.response.id());
    }
  }
  Send();
  if (done.has_value()) {
    const std::lock_guard callbacks(callbacks_);
    Complete(done->final->received, done->final->response, *done);
  }
  const std::lock_guard lock(mutex_);
  if (--copying_ == 0) changed_.notify_all();
}

void NormalizeStream::Impl::Complete(const SharedMessage& received,
                                     const norm::v1::StreamResponse& response,
                                     const Pending& pending) const {
  if (absl::Status status = ToAbslStatus(response.status()); !status.ok())
    return Fail(pending.done, status);
  RowTensors rows;
  if (pending.rows != nullptr) {
    absl::StatusOr<RowTensors> returned = pending.rows->TakeResult();
    if (!returned.ok()) return Fail(pending.done, returned.status());
    rows = *std::move(returned);
  }
  if (const ForwardCallback* forward = std::get_if<ForwardCallback>(&pending.done)) {
    if (response.has_forward()) {
      return (*forward)(
          WithSize(Decode(received, response.forward(), std::move(rows)), pending.message_bytes));
    }
  } else if (response.has_backward()) {
    return std::get<BackwardCallback>(pending.done)(
        WithSize(Decode(received, response.backward(), std::move(rows)), pending.message_bytes));
  }
  Fail(pending.done,
       absl::InternalError("the server answered with the result of another direction"));
}

absl::Time NormalizeStream::Impl::ExpireRequests() {
  while (true) {
    const absl::Time now = absl::Now();
    std::vector<Pending> expired;
    {
      const std::lock_guard lock(mutex_);
      awake_at_ = absl::InfiniteFuture();
      std::vector<uint64_t> ids;
      for (const auto& [id, request] : pending_) {
        if (request.deadline <= now) {
          ids.push_back(id);
        } else {
          awake_at_ = std::min(awake_at_, request.deadline);
        }
      }
      for (const uint64_t id : ids) expired.push_back(Remove(id));
      if (expired.empty()) return awake_at_;
    }
    Send();
    const std::lock_guard callbacks(callbacks_);
    for (const Pending& request : expired) Fail(request.done, request.failure);
  }
}

void NormalizeStream::Impl::Close() {
  const Connection connection = channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY
                                    ? Connection::kUp
                                    : Connection::kDown;
  TakeRequestId();
  absl::Status status = ToAbslStatus(grpc_status_, context_, connection);
  std::vector<Callback> failed;
  {
    std::unique_lock lock(mutex_);
    // Their requests may have been answered.
    changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return copying_ == 0; });
    --outstanding_;
    for (auto& [id, request] : pending_) failed.push_back(std::move(request.done));
    pending_.clear();
    unsent_.clear();
    uploads_.clear();
    open_transfers_ = 0;
    unsent_bytes_ = 0;
    if (cancelled_) status = absl::CancelledError("the stream was cancelled by its owner");
    status = WithRequestId(status, request_id_);
    // From here on nobody would complete a request.
    ended_ = true;
    final_status_ = status;
    changed_.notify_all();
  }
  const absl::Status reason =
      status.ok() ? absl::UnavailableError("the server closed the stream before it answered")
                  : status;
  {
    const std::lock_guard callbacks(callbacks_);
    for (const Callback& done : failed) Fail(done, reason);
  }
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace norm::client
