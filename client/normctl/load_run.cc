#include "client/normctl/load_run.h"

#include <chrono>
#include <cstddef>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/normctl/load_connection.h"
#include "client/normctl/load_pairs.h"
#include "client/normctl/load_phase.h"
#include "client/normctl/mix_sequence.h"
#include "client/normctl/prepared_case.h"
#include "norm/client/client.h"

namespace norm::normctl {
namespace {

using std::chrono::nanoseconds;

constexpr int kEchoesBefore = 20;

nanoseconds Seconds(double seconds) {
  return std::chrono::round<nanoseconds>(std::chrono::duration<double>(seconds));
}

std::vector<int64_t> Shares(const std::vector<LoadCase>& cases) {
  std::vector<int64_t> shares;
  shares.reserve(cases.size());
  for (const LoadCase& load_case : cases) shares.push_back(load_case.share);
  return shares;
}

std::optional<double> MeanMicroseconds(const client::StageTotal& before,
                                       const client::StageTotal& after) {
  if (after.requests <= before.requests) return std::nullopt;
  return 1e6 * (after.seconds - before.seconds) /
         static_cast<double>(after.requests - before.requests);
}

ServerStages Between(const client::ServerStatistics& before,
                     const client::ServerStatistics& after) {
  return {MeanMicroseconds(before.encode, after.encode), MeanMicroseconds(before.send, after.send)};
}

}  // namespace

/// What one client sends, and its connections.
class LoadSession::Side {
 public:
  Side(const std::vector<LoadCase>& cases, std::optional<EchoSize> echo)
      : load_cases_(cases), echo_(echo), sequence_(Shares(cases)) {}

  /// Opens every connection, so that none is opened while latencies are taken, and sends each case
  /// once.
  absl::Status Open(const LoadOptions& options, int64_t connections) {
    for (const LoadCase& load_case : load_cases_) {
      absl::StatusOr<PreparedCase> prepared = PreparedCase::Make(load_case);
      if (!prepared.ok()) return prepared.status();
      cases_.push_back(*std::move(prepared));
    }
    response_bytes_.resize(cases_.size());
    for (int64_t i = 0; i < connections; ++i) {
      if (absl::Status status = Connect(options); !status.ok()) return status;
    }
    return TryCases(options.timeout);
  }

  PhaseParts Requests(LoadProgress& progress) const { return Parts(connections_, progress); }
  PhaseParts Echoes(LoadProgress& progress) const { return Parts(echoes_, progress); }

  /// Zeros where the server has none.
  client::ServerStatistics Statistics(absl::Duration timeout) const {
    return clients_[0]->GetStatistics(timeout).value_or(client::ServerStatistics());
  }

  const std::string& server_version() const { return server_version_; }
  const std::vector<std::string>& devices() const { return devices_; }
  const std::vector<nanoseconds>& first_calls() const { return first_calls_; }

 private:
  PhaseParts Parts(const std::vector<std::unique_ptr<LoadConnection>>& connections,
                   LoadProgress& progress) const {
    return {.connections = connections,
            .sequence = sequence_,
            .cases = cases_.size(),
            .progress = progress};
  }

  absl::Status Connect(const LoadOptions& options) {
    // Each try is counted here; the client makes one.
    client::ClientOptions client_options = options.client_options;
    client_options.retry.max_attempts = 1;
    const client::RetryPolicy retry{.max_attempts = static_cast<int>(options.attempts)};
    absl::StatusOr<std::unique_ptr<client::Client>> client =
        client::Client::Create(options.server, client_options);
    if (!client.ok()) return client.status();
    absl::StatusOr<client::ServerInfo> info = absl::UnknownError("not asked");
    const absl::Status asked =
        client::CallWithRetries(retry, options.timeout, [&](absl::Duration left) {
          info = (*client)->GetServerInfo(left);
          return info.status();
        });
    if (!asked.ok()) return asked;
    if (clients_.empty()) {
      server_version_ = info->version;
      for (const client::DeviceInfo& device : info->devices) devices_.push_back(device.name);
    }
    absl::StatusOr<std::unique_ptr<LoadConnection>> connection =
        OpenConnection(**client, cases_, options.transport);
    if (!connection.ok()) return connection.status();
    connections_.push_back(WithRetries(*std::move(connection), retry));
    if (echo_.has_value())
      echoes_.push_back(OpenEcho(**client, cases_, options.transport, *echo_, response_bytes_));
    clients_.push_back(*std::move(client));
    return absl::OkStatus();
  }

  /// Learns how long responses are, and how long the first calls take. Empty echoes go before them,
  /// so that those are not the first that the connection and this process see.
  absl::Status TryCases(absl::Duration timeout) {
    for (int i = 0; echo_ == EchoSize::kEmpty && i < kEchoesBefore; ++i) {
      const absl::StatusOr<LoadReply> echo = echoes_[0]->Send(0, 0, timeout);
      if (!echo.ok()) return Named("echo", echo.status());
    }
    for (size_t i = 0; i < cases_.size(); ++i) {
      const auto start = std::chrono::steady_clock::now();
      const absl::StatusOr<LoadReply> reply = connections_[0]->Send(i, 0, timeout);
      first_calls_.push_back(std::chrono::steady_clock::now() - start);
      if (!reply.ok()) return Named(load_cases_[i].Name(), reply.status());
      response_bytes_[i] = reply->message_bytes;
      if (echoes_.empty()) continue;
      const absl::StatusOr<LoadReply> echo = echoes_[0]->Send(i, 0, timeout);
      if (!echo.ok()) return Named("echo", echo.status());
    }
    return absl::OkStatus();
  }

  /// Payloads stay: they tell an unreachable server.
  static absl::Status Named(const std::string& name, const absl::Status& status) {
    absl::Status named(status.code(), absl::StrCat(name, ": ", status.message()));
    status.ForEachPayload([&named](absl::string_view url, const absl::Cord& payload) {
      named.SetPayload(url, payload);
    });
    return named;
  }

  const std::vector<LoadCase>& load_cases_;
  const std::optional<EchoSize> echo_;
  const MixSequence sequence_;
  std::vector<PreparedCase> cases_;
  std::vector<int64_t> response_bytes_;  // of the message that answers each case
  std::vector<nanoseconds> first_calls_;
  std::string server_version_;
  std::vector<std::string> devices_;
  std::vector<std::unique_ptr<client::Client>> clients_;
  // Borrow what is above.
  std::vector<std::unique_ptr<LoadConnection>> connections_;
  std::vector<std::unique_ptr<LoadConnection>> echoes_;
};

class LoadSession::Impl {
 public:
  explicit Impl(const LoadOptions& options)
      : options_(options), side_(options_.cases, options_.echo) {
    if (options_.flood.has_value()) flooder_.emplace(FloodCases(options_), std::nullopt);
  }

  absl::Status Open() {
    if (absl::Status status = side_.Open(options_, options_.connections); !status.ok())
      return status;
    if (!flooder_.has_value()) return absl::OkStatus();
    return flooder_->Open(options_, options_.flood->connections);
  }

  absl::StatusOr<LoadResult> Run(std::optional<double> rate, const std::string& label,
                                 LoadProgress& progress) {
    if (flooder_.has_value()) return RunBesideFlood(rate, label, progress);
    LoadResult result;
    result.first_calls = side_.first_calls();
    const client::ServerStatistics before = side_.Statistics(options_.timeout);
    if (absl::Status status = Measure(rate, label, progress, &result); !status.ok()) return status;
    result.server_stages = Between(before, side_.Statistics(options_.timeout));
    return result;
  }

  const std::string& server_version() const { return side_.server_version(); }
  const std::vector<std::string>& devices() const { return side_.devices(); }

 private:
  static const std::vector<LoadCase>& FloodCases(const LoadOptions& options) {
    return options.flood->cases.empty() ? options.cases : options.flood->cases;
  }

  absl::Status Measure(std::optional<double> rate, const std::string& label, LoadProgress& progress,
                       LoadResult* result) {
    if (options_.pairs) {
      MeasurePairs(label, progress, result);
      return absl::OkStatus();
    }
    if (options_.echo.has_value()) return MeasureRounds(rate, label, progress, result);
    absl::StatusOr<LoadSamples> load =
        RunPhase(side_.Requests(progress), options_.duration_seconds, rate, label + "requests");
    if (!load.ok()) return load.status();
    result->load = Summarize(*std::move(load), SampleStages::kPresent);
    return absl::OkStatus();
  }

  absl::Status MeasureRounds(std::optional<double> rate, const std::string& label,
                             LoadProgress& progress, LoadResult* result) {
    const double seconds = options_.duration_seconds / static_cast<double>(options_.rounds);
    LoadSamples requests;
    LoadSamples echoes;
    for (int64_t round = 0; round < options_.rounds; ++round) {
      EchoRound figures;
      for (const bool echo : {round % 2 == 0, round % 2 != 0}) {
        absl::StatusOr<LoadSamples> samples = RunPhase(
            echo ? side_.Echoes(progress) : side_.Requests(progress), seconds, rate,
            absl::StrCat(label, echo ? "echo " : "requests ", round + 1, " of ", options_.rounds));
        if (!samples.ok()) return samples.status();
        (echo ? figures.echoes_per_second : figures.requests_per_second) =
            samples->requests_per_second();
        (echo ? echoes : requests).Add(*std::move(samples));
      }
      result->rounds.push_back(figures);
    }
    result->load = Summarize(std::move(requests), SampleStages::kPresent);
    result->echo = Summarize(std::move(echoes), SampleStages::kAbsent);
    return absl::OkStatus();
  }

  void MeasurePairs(const std::string& label, LoadProgress& progress, LoadResult* result) {
    progress.Begin(label + "requests and echoes in turn", absl::Seconds(options_.warm_up_seconds),
                   absl::Seconds(options_.duration_seconds));
    PairedSamples paired = RunPairs(Phase(1, options_.duration_seconds, std::nullopt),
                                    side_.Requests(progress), side_.Echoes(progress));
    result->load = Summarize(std::move(paired.requests), SampleStages::kPresent);
    result->echo = Summarize(std::move(paired.echoes), SampleStages::kAbsent);
    result->pair_differences = Summarize(std::move(paired.differences));
  }

  absl::StatusOr<LoadResult> RunBesideFlood(std::optional<double> rate, const std::string& label,
                                            LoadProgress& progress) {
    const double seconds = options_.duration_seconds;
    absl::StatusOr<LoadSamples> alone =
        RunPhase(side_.Requests(progress), seconds, rate, label + "requests alone");
    if (!alone.ok()) return alone.status();
    LoadProgress unseen;
    absl::StatusOr<LoadSamples> flood = absl::UnknownError("not run");
    std::thread flooding;
    try {
      flooding = std::thread([&] {
        flood = normctl::RunPhase(Phase(options_.flood->in_flight, seconds, std::nullopt),
                                  flooder_->Requests(unseen));
      });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the flood's thread cannot be started: ", error.what()));
    }
    absl::StatusOr<LoadSamples> beside =
        RunPhase(side_.Requests(progress), seconds, rate, label + "requests beside a flood");
    flooding.join();
    if (!beside.ok()) return beside.status();
    if (!flood.ok()) return flood.status();
    LoadResult result;
    result.first_calls = side_.first_calls();
    result.load = Summarize(*std::move(beside), SampleStages::kPresent);
    result.flood.emplace(FloodResult{Summarize(*std::move(alone), SampleStages::kPresent),
                                     Summarize(*std::move(flood), SampleStages::kPresent)});
    return result;
  }

  PhaseOptions Phase(int64_t in_flight, double seconds, std::optional<double> rate) const {
    return {.in_flight = in_flight,
            .rate = rate,
            .warm_up = Seconds(options_.warm_up_seconds),
            .duration = Seconds(seconds),
            .timeout = options_.timeout};
  }

  absl::StatusOr<LoadSamples> RunPhase(const PhaseParts& parts, double seconds,
                                       std::optional<double> rate, const std::string& label) {
    parts.progress.Begin(label, absl::Seconds(options_.warm_up_seconds), absl::Seconds(seconds));
    return normctl::RunPhase(Phase(options_.in_flight, seconds, rate), parts);
  }

  const LoadOptions options_;
  Side side_;
  std::optional<Side> flooder_;
};

LoadSession::LoadSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LoadSession::~LoadSession() = default;

absl::StatusOr<std::unique_ptr<LoadSession>> LoadSession::Open(const LoadOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  if (absl::Status status = impl->Open(); !status.ok()) return status;
  return std::unique_ptr<LoadSession>(new LoadSession(std::move(impl)));
}

const std::string& LoadSession::server_version() const { return impl_->server_version(); }
const std::vector<std::string>& LoadSession::devices() const { return impl_->devices(); }

absl::StatusOr<LoadResult> LoadSession::Run(std::optional<double> rate, const std::string& label,
                                            LoadProgress& progress) {
  return impl_->Run(rate, label, progress);
}

}  // namespace norm::normctl
