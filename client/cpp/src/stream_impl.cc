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

constexpr char kMethod[] = "/norm.v1.NormalizationService/NormalizeStream";

template <typename Result>
absl::StatusOr<Result> WithSize(absl::StatusOr<Result> result, const grpc::ByteBuffer& message) {
  if (result.ok()) result->message_bytes = static_cast<int64_t>(message.Length());
  return result;
}

}  // namespace

NormalizeStream::Impl::Impl(std::shared_ptr<grpc::Channel> channel, const StreamOptions& options)
    : max_unsent_bytes_(options.max_unsent_bytes), channel_(std::move(channel)) {
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
}

void NormalizeStream::Impl::Fail(const Callback& done, const absl::Status& status) {
  std::visit([&](const auto& callback) { callback(status); }, done);
}

absl::Status NormalizeStream::Impl::Encode(const ForwardRequest& request,
                                           wire::MessageWriter* writer,
                                           norm::v1::StreamRequest* message) {
  return client::Encode(request, writer, message->mutable_forward());
}

absl::Status NormalizeStream::Impl::Encode(const BackwardRequest& request,
                                           wire::MessageWriter* writer,
                                           norm::v1::StreamRequest* message) {
  return client::Encode(request, writer, message->mutable_backward());
}

void NormalizeStream::Impl::Submit(const ForwardRequest& request, absl::Duration timeout,
                                   ForwardCallback done) {
  SubmitTyped(request, timeout, Callback(std::move(done)));
}

void NormalizeStream::Impl::Submit(const BackwardRequest& request, absl::Duration timeout,
                                   BackwardCallback done) {
  SubmitTyped(request, timeout, Callback(std::move(done)));
}

template <typename Request>
void NormalizeStream::Impl::SubmitTyped(const Request& request, absl::Duration timeout,
                                        const Callback& done) {
  absl::StatusOr<absl::Time> deadline = DeadlineAfter(timeout);
  if (!deadline.ok()) return Fail(done, deadline.status());
  wire::MessageWriter writer;
  norm::v1::StreamRequest message;
  const uint64_t id = next_id_.fetch_add(1, std::memory_order_relaxed);
  message.set_id(id);
  message.set_timeout_us(
      static_cast<uint64_t>(std::max<int64_t>(1, absl::ToInt64Microseconds(timeout))));
  if (absl::Status status = Encode(request, &writer, &message); !status.ok())
    return Fail(done, status);
  absl::StatusOr<grpc::ByteBuffer> buffer = writer.Build(message);
  if (!buffer.ok()) return Fail(done, buffer.status());
  if (absl::Status status = Enqueue(id, *buffer, *deadline, done); !status.ok()) Fail(done, status);
}

absl::Status NormalizeStream::Impl::Enqueue(uint64_t id, const grpc::ByteBuffer& buffer,
                                            absl::Time deadline, const Callback& done) {
  std::unique_lock lock(mutex_);
  if (std::this_thread::get_id() != thread_.get_id()) {
    const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return unsent_bytes_ + writing_bytes_ <= max_unsent_bytes_ || ended_ || half_close_wanted_;
    };
    if (!changed_.wait_until(lock, absl::ToChronoTime(deadline), has_room)) {
      return absl::DeadlineExceededError(absl::StrCat("the deadline passed while ", unsent_bytes_,
                                                      " bytes were waiting to be sent"));
    }
  }
  if (absl::Status refusal = Refusal(); !refusal.ok()) return refusal;
  unsent_bytes_ += static_cast<int64_t>(buffer.Length());
  pending_.emplace(id, Pending{deadline, done});
  unsent_.push_back(Unsent{id, buffer});
  StartWrites();
  if (deadline < awake_at_) Kick();
  return absl::OkStatus();
}

absl::Status NormalizeStream::Impl::Refusal() const {
  if (ended_) {
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
  std::unique_lock lock(mutex_);
  half_close_wanted_ = true;
  changed_.notify_all();
  StartWrites();
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

void NormalizeStream::Impl::StartWrites() {
  if (!started_ || writing_ || write_broken_ || half_closed_ || finishing_) return;
  while (!unsent_.empty()) {
    const Unsent next = std::move(unsent_.front());
    unsent_.pop_front();
    const auto bytes = static_cast<int64_t>(next.buffer.Length());
    unsent_bytes_ -= bytes;
    if (!pending_.contains(next.id)) continue;  // expired before it left
    writing_ = true;
    writing_bytes_ = bytes;
    ++outstanding_;
    call_->Write(next.buffer, reinterpret_cast<void*>(kWritten));
    return;
  }
  if (half_close_wanted_) {
    half_closed_ = true;
    ++outstanding_;
    call_->WritesDone(reinterpret_cast<void*>(kWritesDone));
  }
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
  while (true) {
    absl::Time wake;
    {
      const std::lock_guard lock(mutex_);
      if (closed_ && outstanding_ == 0) break;
      wake = absl::InfiniteFuture();
      for (const auto& [id, request] : pending_) wake = std::min(wake, request.deadline);
      awake_at_ = wake;
    }
    void* tag = nullptr;
    bool ok = false;
    const auto result = wake == absl::InfiniteFuture()
                            ? queue_.AsyncNext(&tag, &ok, gpr_inf_future(GPR_CLOCK_REALTIME))
                            : queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(wake));
    if (result == grpc::CompletionQueue::GOT_EVENT)
      Handle(static_cast<Event>(reinterpret_cast<intptr_t>(tag)), ok);
    ExpireRequests();
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

void NormalizeStream::Impl::Handle(Event event, bool ok) {
  if (event == kRead && ok) {
    const grpc::ByteBuffer message = incoming_;
    {
      const std::lock_guard lock(mutex_);
      --outstanding_;
      incoming_.Clear();
      StartRead();
    }
    return Complete(message);
  }
  if (event == kFinished) return Close();
  const std::lock_guard lock(mutex_);
  --outstanding_;
  switch (event) {
    case kStarted:
      started_ = true;
      if (ok) {
        StartRead();
        StartWrites();
      } else {
        StartFinish();
      }
      break;
    case kRead:  // the server sends no more
      StartFinish();
      break;
    case kWritten:
      writing_ = false;
      writing_bytes_ = 0;
      write_broken_ = !ok;
      StartWrites();
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

void NormalizeStream::Impl::Complete(const grpc::ByteBuffer& buffer) {
  auto received = std::make_shared<wire::ReceivedMessage>();
  norm::v1::StreamResponse response;
  if (absl::Status status = received->Parse(buffer, &response); !status.ok()) {
    // Which request it answers is unknown: those in flight end by their deadlines.
    return;
  }
  Callback done;
  {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(response.id());
    if (found == pending_.end()) return;  // expired before the answer came
    done = std::move(found->second.done);
    pending_.erase(found);
  }
  if (absl::Status status = ToAbslStatus(response.status()); !status.ok())
    return Fail(done, status);
  if (const ForwardCallback* forward = std::get_if<ForwardCallback>(&done)) {
    if (response.has_forward())
      return (*forward)(WithSize(Decode(received, response.forward()), buffer));
  } else if (response.has_backward()) {
    return std::get<BackwardCallback>(done)(
        WithSize(Decode(received, response.backward()), buffer));
  }
  Fail(done, absl::InternalError("the server answered with the result of another direction"));
}

void NormalizeStream::Impl::ExpireRequests() {
  const absl::Time now = absl::Now();
  std::vector<Callback> expired;
  {
    const std::lock_guard lock(mutex_);
    if (now < awake_at_) return;
    for (auto it = pending_.begin(); it != pending_.end();) {
      if (it->second.deadline <= now) {
        expired.push_back(std::move(it->second.done));
        it = pending_.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (const Callback& done : expired) {
    Fail(done, absl::DeadlineExceededError("no result within the request's timeout"));
  }
}

void NormalizeStream::Impl::Close() {
  const Connection connection = channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY
                                    ? Connection::kUp
                                    : Connection::kDown;
  absl::Status status = ToAbslStatus(grpc_status_, context_, connection);
  std::vector<Callback> failed;
  {
    const std::lock_guard lock(mutex_);
    --outstanding_;
    for (auto& [id, request] : pending_) failed.push_back(std::move(request.done));
    pending_.clear();
    unsent_.clear();
    unsent_bytes_ = 0;
    if (cancelled_) status = absl::CancelledError("the stream was cancelled by its owner");
    // From here on nobody would complete a request.
    ended_ = true;
    final_status_ = status;
    changed_.notify_all();
  }
  const absl::Status reason =
      status.ok() ? absl::UnavailableError("the server closed the stream before it answered")
                  : status;
  for (const Callback& done : failed) Fail(done, reason);
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

NormalizeStream::NormalizeStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NormalizeStream::~NormalizeStream() = default;

void NormalizeStream::Normalize(const ForwardRequest& request, absl::Duration timeout,
                                ForwardCallback done) {
  impl_->Submit(request, timeout, std::move(done));
}

void NormalizeStream::NormalizeBackward(const BackwardRequest& request, absl::Duration timeout,
                                        BackwardCallback done) {
  impl_->Submit(request, timeout, std::move(done));
}

std::future<absl::StatusOr<ForwardResult>> NormalizeStream::Normalize(const ForwardRequest& request,
                                                                      absl::Duration timeout) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<ForwardResult>>>();
  auto future = promise->get_future();
  Normalize(request, timeout, [promise](absl::StatusOr<ForwardResult> result) {
    promise->set_value(std::move(result));
  });
  return future;
}

std::future<absl::StatusOr<BackwardResult>> NormalizeStream::NormalizeBackward(
    const BackwardRequest& request, absl::Duration timeout) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<BackwardResult>>>();
  auto future = promise->get_future();
  NormalizeBackward(request, timeout, [promise](absl::StatusOr<BackwardResult> result) {
    promise->set_value(std::move(result));
  });
  return future;
}

absl::Status NormalizeStream::Finish(absl::Duration timeout) { return impl_->Finish(timeout); }
absl::Status NormalizeStream::status() const { return impl_->status(); }
int64_t NormalizeStream::in_flight() const { return impl_->in_flight(); }

}  // namespace norm::client
