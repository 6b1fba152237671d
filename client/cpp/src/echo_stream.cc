#include "echo_stream.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "call_status.h"
#include "encoded_request.h"
#include "grpcpp/generic/generic_stub.h"
#include "timeout.h"

namespace norm::client {
namespace {

constexpr char kMethod[] = "/norm.v1.EchoService/EchoStream";
/// The tag of EchoMessage.response_bytes, field 2 of 64 bits.
constexpr char kResponseBytesTag = 0x11;
constexpr size_t kPrefixBytes = 9;

/// `message` with its first bytes replaced by the size asked for; a shorter one as it is.
grpc::ByteBuffer AskFor(const grpc::ByteBuffer& message, int64_t response_bytes) {
  std::vector<grpc::Slice> slices;
  if (message.Length() < kPrefixBytes || !message.Dump(&slices).ok()) return message;
  std::string prefix(1, kResponseBytesTag);
  for (int i = 0; i < 8; ++i)
    prefix.push_back(static_cast<char>(static_cast<uint64_t>(response_bytes) >> (8 * i)));
  std::vector<grpc::Slice> asked = {grpc::Slice(prefix)};
  size_t skip = kPrefixBytes;
  for (const grpc::Slice& slice : slices) {
    const size_t here = std::min(skip, slice.size());
    skip -= here;
    if (here < slice.size()) asked.push_back(here == 0 ? slice : slice.sub(here, slice.size()));
  }
  return grpc::ByteBuffer(asked.data(), asked.size());
}

}  // namespace

EchoStream::Impl::Impl(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {
  grpc::GenericStub stub(channel_);
  call_ = stub.PrepareCall(&context_, kMethod, &queue_);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    const std::lock_guard lock(mutex_);
    ended_ = absl::ResourceExhaustedError(
        absl::StrCat("no thread can be started for the echo: ", error.what()));
    return;
  }
  call_->StartCall(reinterpret_cast<void*>(kStarted));
}

EchoStream::Impl::~Impl() {
  context_.TryCancel();
  if (thread_.joinable()) thread_.join();
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

absl::Status EchoStream::Impl::Echo(const grpc::ByteBuffer& message, int64_t response_bytes,
                                    absl::Time deadline) {
  const auto waiter = std::make_shared<Waiter>();
  std::future<absl::StatusOr<int64_t>> answer = waiter->get_future();
  {
    const std::lock_guard lock(mutex_);
    if (!ended_.ok()) return ended_;
    waiting_.push_back(waiter);
    unsent_.push_back(AskFor(message, response_bytes));
    StartWrite();
  }
  if (answer.wait_until(absl::ToChronoTime(deadline)) != std::future_status::ready)
    return absl::DeadlineExceededError("no echo within the timeout");
  const absl::StatusOr<int64_t> size = answer.get();
  if (!size.ok()) return size.status();
  if (*size == response_bytes) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the echo has ", *size, " bytes, not the ", response_bytes, " asked for"));
}

void EchoStream::Impl::StartWrite() {
  if (!started_ || writing_ || unsent_.empty()) return;
  writing_ = true;
  call_->Write(unsent_.front(), reinterpret_cast<void*>(kWritten));
  unsent_.pop_front();
}

void EchoStream::Impl::Run() {
  // Operations whose event has not come back; only this thread starts them, but for writes.
  bool reading = false;
  bool finished = false;
  while (true) {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    const std::lock_guard lock(mutex_);
    switch (static_cast<Event>(reinterpret_cast<intptr_t>(tag))) {
      case kStarted:
        started_ = ok;
        reading = ok;
        StartWrite();
        break;
      case kRead:
        reading = ok;
        if (ok && !waiting_.empty()) {
          waiting_.front()->set_value(static_cast<int64_t>(incoming_.Length()));
          waiting_.pop_front();
        }
        break;
      case kWritten:
        writing_ = false;
        if (ok) StartWrite();
        break;
      case kFinished:
        End();
        finished = true;
        break;
    }
    const auto event = static_cast<Event>(reinterpret_cast<intptr_t>(tag));
    if (event == kStarted || event == kRead) {
      if (reading) {
        call_->Read(&incoming_, reinterpret_cast<void*>(kRead));
      } else {
        started_ = false;  // no more writes
        call_->Finish(&status_, reinterpret_cast<void*>(kFinished));
      }
    }
    if (finished && !writing_) return;
  }
}

void EchoStream::Impl::End() {
  const Connection connection = channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY
                                    ? Connection::kUp
                                    : Connection::kDown;
  ended_ = ToAbslStatus(status_, context_, connection);
  if (ended_.ok()) ended_ = absl::UnavailableError("the server ended the echo");
  for (const auto& waiter : waiting_) waiter->set_value(ended_);
  waiting_.clear();
  unsent_.clear();
}

EchoStream::EchoStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EchoStream::~EchoStream() = default;

absl::Status EchoStream::Echo(const EncodedRequest& request, int64_t response_bytes,
                              absl::Duration timeout) {
  const absl::StatusOr<absl::Time> deadline = DeadlineAfter(timeout);
  if (!deadline.ok()) return deadline.status();
  return impl_->Echo(request.message_->bytes, response_bytes, *deadline);
}

}  // namespace norm::client
