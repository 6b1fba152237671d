#include "client/normctl/load_run.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/normctl/load_schedule.h"
#include "norm/client/client.h"

namespace norm::normctl {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// Before a worker's samples grow, which copies them.
constexpr size_t kReservedSamples = 1 << 16;

nanoseconds Seconds(double seconds) {
  return std::chrono::round<nanoseconds>(std::chrono::duration<double>(seconds));
}

/// What one worker counted.
struct Tally {
  int64_t completed = 0;
  std::map<absl::StatusCode, int64_t> errors;
  absl::Status first_error;
  int64_t bytes_received = 0;
  SteadyClock::time_point last_end;
  std::vector<nanoseconds> latencies;
  std::vector<nanoseconds> send_delays;
};

absl::StatusOr<client::Tensor> MakeX(const LoadOptions& options) {
  absl::StatusOr<client::Tensor> x =
      client::Tensor::Allocate(DType::kF32, {options.shape.rows, options.shape.hidden});
  if (!x.ok()) return x;
  auto* values = reinterpret_cast<float*>(x->mutable_bytes().data());
  for (int64_t i = 0; i < x->elements(); ++i) values[i] = static_cast<float>(i % 97) - 48.0F;
  return client::Cast(*x, options.dtype);
}

client::ForwardRequest MakeRequest(Op op, const client::Tensor& x) {
  if (op == Op::kLayerNorm) return client::LayerNormRequest{.x = x.view()};
  return client::RmsNormRequest{.x = x.view()};
}

/// One run. The workers borrow it; Run joins them.
class LoadRun {
 public:
  LoadRun(const LoadOptions& options, client::Tensor x)
      : options_(options),
        x_(std::move(x)),
        request_(MakeRequest(options.op, x_)),
        warm_up_(Seconds(options.warm_up_seconds)),
        end_(warm_up_ + Seconds(options.duration_seconds)) {
    if (!options.rate.has_value()) return;
    schedule_.emplace(*options.rate);
    next_of_window_ = schedule_->FirstAtOrAfter(warm_up_);
  }

  /// Opens every connection, so that none is opened while latencies are taken.
  absl::Status Connect(LoadOutcome* outcome) {
    for (int64_t i = 0; i < options_.connections; ++i) {
      client::ClientOptions client_options;
      client_options.retry.max_attempts = 1;
      absl::StatusOr<std::unique_ptr<client::Client>> client =
          client::Client::Create(options_.server, client_options);
      if (!client.ok()) return client.status();
      absl::StatusOr<client::ServerInfo> info = (*client)->GetServerInfo(options_.timeout);
      if (!info.ok()) return info.status();
      if (i == 0) {
        outcome->server_version = info->version;
        for (const client::DeviceInfo& device : info->devices) {
          outcome->devices.push_back(device.name);
        }
      }
      clients_.push_back(*std::move(client));
    }
    return absl::OkStatus();
  }

  void Run(LoadOutcome* outcome) {
    std::vector<Tally> tallies(static_cast<size_t>(options_.connections * options_.in_flight));
    std::vector<std::thread> workers;
    workers.reserve(tallies.size());
    for (size_t i = 0; i < tallies.size(); ++i) {
      workers.emplace_back([this, tally = &tallies[i], &client = *clients_[i % clients_.size()]] {
        *tally = RunWorker(client);
      });
    }
    start_ = SteadyClock::now();
    started_.Notify();
    for (std::thread& worker : workers) worker.join();
    Merge(std::move(tallies), outcome);
  }

 private:
  Tally RunWorker(client::Client& client) {
    Tally tally;
    tally.latencies.reserve(kReservedSamples);
    if (schedule_.has_value()) tally.send_delays.reserve(kReservedSamples);
    started_.WaitForNotification();
    tally.last_end = start_;
    schedule_.has_value() ? RunOpenLoop(client, &tally) : RunClosedLoop(client, &tally);
    return tally;
  }

  void RunClosedLoop(client::Client& client, Tally* tally) {
    while (true) {
      const SteadyClock::time_point now = SteadyClock::now();
      if (now >= start_ + end_) return;
      Send(client, now, tally);
    }
  }

  /// What the warm-up had no worker for is dropped: the window begins without its backlog.
  void RunOpenLoop(client::Client& client, Tally* tally) {
    ::prctl(PR_SET_TIMERSLACK, 1UL);  // by default the kernel wakes a sleeper up to 50 us late
    SendUntil(client, warm_up_, &next_of_warm_up_, tally);
    SendUntil(client, end_, &next_of_window_, tally);
  }

  /// Free workers take the requests in turn, whatever their connection.
  void SendUntil(client::Client& client, nanoseconds end, std::atomic<int64_t>* next,
                 Tally* tally) {
    while (true) {
      const nanoseconds intended =
          schedule_->IntendedAt(next->fetch_add(1, std::memory_order_relaxed));
      if (intended >= end || SteadyClock::now() >= start_ + end) return;
      std::this_thread::sleep_until(start_ + intended);
      if (intended >= warm_up_) {
        tally->send_delays.push_back(SteadyClock::now() - (start_ + intended));
      }
      Send(client, start_ + intended, tally);
    }
  }

  /// One request, whose latency counts from `begin`.
  void Send(client::Client& client, SteadyClock::time_point begin, Tally* tally) {
    const absl::StatusOr<client::ForwardResult> result =
        client.Normalize(request_, options_.timeout);
    const SteadyClock::time_point end = SteadyClock::now();
    if (begin < start_ + warm_up_) return;
    tally->last_end = end;
    const absl::Status status = result.ok() ? CheckResult(*result) : result.status();
    if (!status.ok()) {
      ++tally->errors[status.code()];
      if (tally->first_error.ok()) tally->first_error = status;
      return;
    }
    ++tally->completed;
    tally->bytes_received += static_cast<int64_t>(result->y.bytes().size());
    tally->latencies.push_back(end - begin);
  }

  absl::Status CheckResult(const client::ForwardResult& result) const {
    if (result.y.dtype() == x_.dtype() && result.y.shape() == x_.shape()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("y has ", result.y.elements(), " elements of ",
                                            DTypeName(result.y.dtype()), ", x ", x_.elements(),
                                            " of ", DTypeName(x_.dtype())));
  }

  void Merge(std::vector<Tally> tallies, LoadOutcome* outcome) const {
    SteadyClock::time_point last_end = start_ + end_;
    std::vector<nanoseconds> latencies;
    std::vector<nanoseconds> send_delays;
    for (Tally& tally : tallies) {
      outcome->completed += tally.completed;
      for (const auto& [code, count] : tally.errors) outcome->errors[code] += count;
      if (outcome->first_error.ok()) outcome->first_error = tally.first_error;
      outcome->bytes_received += tally.bytes_received;
      last_end = std::max(last_end, tally.last_end);
      latencies.insert(latencies.end(), tally.latencies.begin(), tally.latencies.end());
      send_delays.insert(send_delays.end(), tally.send_delays.begin(), tally.send_delays.end());
      tally = Tally();
    }
    outcome->bytes_sent = outcome->completed * options_.tensor_bytes();
    outcome->measured_seconds =
        std::chrono::duration<double>(last_end - (start_ + warm_up_)).count();
    outcome->latency = Summarize(std::move(latencies));
    outcome->send_delay = Summarize(std::move(send_delays));
    if (schedule_.has_value()) {
      outcome->not_sent = schedule_->RequestsIn(warm_up_, end_) - outcome->requests();
    }
  }

  const LoadOptions& options_;
  const client::Tensor x_;
  const client::ForwardRequest request_;
  const nanoseconds warm_up_;  // from the start, as end_
  const nanoseconds end_;
  std::optional<OpenLoopSchedule> schedule_;  // of an open loop
  std::vector<std::unique_ptr<client::Client>> clients_;
  SteadyClock::time_point start_;  // written before started_ is notified
  absl::Notification started_;
  // Of an open loop: the first requests that no worker has taken.
  std::atomic<int64_t> next_of_warm_up_{0};
  std::atomic<int64_t> next_of_window_{0};
};

}  // namespace

int64_t LoadOutcome::failed() const {
  int64_t failed = 0;
  for (const auto& [code, count] : errors) failed += count;
  return failed;
}

double LoadOutcome::requests_per_second() const {
  return static_cast<double>(completed) / measured_seconds;
}

double LoadOutcome::gigabytes_per_second() const {
  return static_cast<double>(bytes_sent + bytes_received) * 1e-9 / measured_seconds;
}

absl::StatusOr<LoadOutcome> RunLoad(const LoadOptions& options) {
  absl::StatusOr<client::Tensor> x = MakeX(options);
  if (!x.ok()) return x.status();
  LoadRun run(options, *std::move(x));
  LoadOutcome outcome;
  if (absl::Status status = run.Connect(&outcome); !status.ok()) return status;
  run.Run(&outcome);
  return outcome;
}

}  // namespace norm::normctl
