#include "tests/integration/soak_load.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/wrappers.pb.h"
#include "grpcpp/grpcpp.h"

namespace norm::test {
namespace {

using norm::v1::NormalizationService;

constexpr int kStreamDepth = 8;

/// The trailer of a refused call.
std::optional<absl::Duration> Pushback(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  int64_t milliseconds = 0;
  if (found == trailers.end() ||
      !absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()),
                        &milliseconds)) {
    return std::nullopt;
  }
  return absl::Milliseconds(milliseconds);
}

/// google.rpc.RetryInfo, the only detail that UNAVAILABLE has: Duration retry_delay = 1, which has
/// the encoding of the bytes wrapper.
std::optional<absl::Duration> Pushback(const norm::v1::Status& status) {
  google::protobuf::BytesValue retry_info;
  google::protobuf::Duration delay;
  if (status.details_size() != 1 || !retry_info.ParseFromString(status.details(0).value()) ||
      !delay.ParseFromString(retry_info.value())) {
    return std::nullopt;
  }
  return absl::Seconds(delay.seconds()) + absl::Nanoseconds(delay.nanos());
}

}  // namespace

SoakLoad::SoakLoad(const SoakOptions& options) : options_(options) {
  for (int i = 0; i < options.requests; ++i) {
    cases_.push_back(
        std::make_unique<Case>(options.seed + static_cast<uint64_t>(i), options.max_elements));
  }
}

template <typename Response>
void SoakLoad::Check(Case& one, Response response, SoakTotals& totals) {
  totals.responses.fetch_add(1);
  totals.bytes.fetch_add(static_cast<int64_t>(response.ByteSizeLong()));
  const Response whole = response;
  response.clear_timing();
  std::string bytes = response.SerializeAsString();
  if (one.first.load() == nullptr) {
    const ::testing::AssertionResult correct = one.request.Check(whole);
    if (!correct) {
      totals.wrong.fetch_add(1);
      Complain(correct.message());
    }
    const std::lock_guard lock(one.mutex);
    if (one.first.load() == nullptr) {
      one.storage = std::move(bytes);
      one.first.store(&one.storage);
      return;
    }
  }
  if (*one.first.load() != bytes) {
    totals.bits_differ.fetch_add(1);
    Complain(absl::StrCat("other bits than before: ", one.request.label()));
  }
}

void SoakLoad::Complain(absl::string_view text) {
  if (complaints_.fetch_add(1) < 20)
    std::fprintf(stderr, "norm_soak: %s\n", std::string(text).c_str());
}

/// Of requests in flight; whoever has waited longest gets the next one.
class SoakLoad::Places {
 public:
  explicit Places(int free) : free_(free) {}

  void Take() {
    std::unique_lock lock(mutex_);
    if (free_ > 0) {
      --free_;
      return;
    }
    Waiter self;
    waiting_.push_back(&self);
    self.given.wait(lock, [&] { return self.has_place; });
  }

  bool TakeIfFree() {
    const std::lock_guard lock(mutex_);
    if (free_ == 0) return false;
    --free_;
    return true;
  }

  void GiveBack() {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) {
      ++free_;
      return;
    }
    // With the mutex held: the waiter may be gone as soon as it is released.
    waiting_.front()->has_place = true;
    waiting_.front()->given.notify_one();
    waiting_.pop_front();
  }

 private:
  struct Waiter {
    std::condition_variable given;
    bool has_place = false;
  };

  std::mutex mutex_;
  int free_ ABSL_GUARDED_BY(mutex_);  // none while somebody waits
  std::deque<Waiter*> waiting_ ABSL_GUARDED_BY(mutex_);
};

class SoakLoad::Client {
 public:
  Client(SoakLoad& load, int index, absl::Time end, SoakTotals& totals, Places& places)
      : load_(load),
        options_(load.options_),
        end_(end),
        totals_(totals),
        places_(places),
        random_(static_cast<uint64_t>(index) + 1000) {}

  void RunUnary() {
    auto stub = Connect();
    for (int calls = 1; absl::Now() < end_; ++calls) {
      if (options_.calls_per_connection != 0 && calls % options_.calls_per_connection == 0)
        stub = Connect();
      Case& one = Draw();
      places_.Take();
      if (one.request.direction() == Direction::kForward) {
        Call<norm::v1::NormalizeResponse>(one, [&](auto* context, auto* response) {
          return stub->Normalize(context, one.request.forward(), response);
        });
      } else {
        Call<norm::v1::NormalizeBackwardResponse>(one, [&](auto* context, auto* response) {
          return stub->NormalizeBackward(context, one.request.backward(), response);
        });
      }
    }
  }

  void RunStreams() {
    while (absl::Now() < end_) RunStream();
  }

 private:
  std::unique_ptr<NormalizationService::Stub> Connect() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    totals_.connections.fetch_add(1);
    return NormalizationService::NewStub(
        grpc::CreateCustomChannel(options_.server, grpc::InsecureChannelCredentials(), arguments));
  }

  Case& Draw() { return *load_.cases_[random_() % load_.cases_.size()]; }

  template <typename Response, typename Method>
  void Call(Case& one, Method method) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    Response response;
    const grpc::Status status = method(&context, &response);
    places_.GiveBack();
    if (status.ok()) {
      load_.Check(one, std::move(response), totals_);
    } else {
      Fail(one.request.label(), status.error_code(), status.error_message(), Pushback(context));
    }
  }

  /// Counts a refusal, and waits as it says; or an error.
  void Fail(const std::string& label, int code, const std::string& message,
            std::optional<absl::Duration> pushback) {
    if (!options_.refusals_allowed || code != grpc::StatusCode::UNAVAILABLE ||
        !pushback.has_value()) {
      totals_.errors.fetch_add(1);
      load_.Complain(absl::StrCat(label, ": code ", code, ": ", message));
      return;
    }
    totals_.refused.fetch_add(1);
    if (options_.obeys_pushback) absl::SleepFor(std::min(*pushback, end_ - absl::Now()));
  }

  /// One stream on a connection of its own.
  void RunStream() {
    const auto per_connection = static_cast<size_t>(options_.calls_per_connection);
    auto stub = Connect();
    grpc::ClientContext context;
    auto stream = stub->NormalizeStream(&context);
    std::vector<Case*> sent;
    const auto send = [&] {
      Case& one = Draw();
      norm::v1::StreamRequest request;
      request.set_id(sent.size());
      if (one.request.direction() == Direction::kForward) {
        *request.mutable_forward() = one.request.forward();
      } else {
        *request.mutable_backward() = one.request.backward();
      }
      sent.push_back(&one);
      return stream->Write(request);
    };
    bool open = true;
    size_t answered = 0;
    // Up to its depth; waits for a place only where no answer can come.
    const auto fill = [&] {
      while (open && sent.size() - answered < size_t{kStreamDepth}) {
        if (per_connection != 0 && sent.size() >= per_connection) return;
        if (!sent.empty() && absl::Now() >= end_) return;
        if (sent.size() == answered) {
          places_.Take();
        } else if (!places_.TakeIfFree()) {
          return;
        }
        open = send();
      }
    };
    fill();
    norm::v1::StreamResponse response;
    for (; answered < sent.size() && stream->Read(&response); fill()) {
      ++answered;
      places_.GiveBack();
      Answer(response, sent);
    }
    for (size_t lost = answered; lost < sent.size(); ++lost) places_.GiveBack();
    stream->WritesDone();
    while (stream->Read(&response)) Fail("stream", 0, "unasked response", std::nullopt);
    const grpc::Status status = stream->Finish();
    if (!status.ok()) Fail("stream", status.error_code(), status.error_message(), std::nullopt);
  }

  void Answer(const norm::v1::StreamResponse& response, std::vector<Case*>& sent) {
    if (response.id() >= sent.size() || sent[response.id()] == nullptr) {
      Fail("stream", 0, absl::StrCat("unknown or repeated id ", response.id()), std::nullopt);
      return;
    }
    Case& one = *std::exchange(sent[response.id()], nullptr);
    if (response.status().code() != 0) {
      Fail(one.request.label(), response.status().code(), response.status().message(),
           Pushback(response.status()));
      return;
    }
    totals_.stream_responses.fetch_add(1);
    if (response.has_forward()) {
      load_.Check(one, response.forward(), totals_);
    } else {
      load_.Check(one, response.backward(), totals_);
    }
  }

  SoakLoad& load_;
  const SoakOptions& options_;
  const absl::Time end_;
  SoakTotals& totals_;
  Places& places_;
  std::mt19937_64 random_;
};

void SoakLoad::Run(int clients, absl::Time end, SoakTotals& totals, int in_flight) {
  const auto streams_before = [this](int i) { return i * options_.streams_percent / 100; };
  const int streamed = streams_before(clients) * kStreamDepth;
  const int demand = clients - streams_before(clients) + streamed;
  int for_streams = kNoLimit;
  int for_calls = kNoLimit;
  if (in_flight < demand) {
    // One for each kind at least: who waits for a place that there is not would wait for ever.
    for_streams = std::max(1, static_cast<int>(int64_t{in_flight} * streamed / demand));
    for_calls = std::max(1, in_flight - for_streams);
  }
  Places stream_places(for_streams);
  Places call_places(for_calls);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(clients));
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&, i] {
      const bool streams = streams_before(i + 1) > streams_before(i);
      Client client(*this, i, end, totals, streams ? stream_places : call_places);
      streams ? client.RunStreams() : client.RunUnary();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace norm::test
