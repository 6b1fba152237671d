#include "client/normctl/load_run.h"

#include <chrono>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/normctl/load_connection.h"
#include "client/normctl/load_phase.h"
#include "client/normctl/mix_sequence.h"
#include "client/normctl/prepared_case.h"
#include "norm/client/client.h"

namespace norm::normctl {
namespace {

using std::chrono::nanoseconds;

nanoseconds Seconds(double seconds) {
  return std::chrono::round<nanoseconds>(std::chrono::duration<double>(seconds));
}

std::vector<int64_t> Shares(const std::vector<LoadCase>& cases) {
  std::vector<int64_t> shares;
  for (const LoadCase& load_case : cases) shares.push_back(load_case.share);
  return shares;
}

}  // namespace

class LoadSession::Impl {
 public:
  explicit Impl(const LoadOptions& options) : options_(options), sequence_(Shares(options.cases)) {}

  absl::Status Open() {
    for (const LoadCase& load_case : options_.cases) {
      absl::StatusOr<PreparedCase> prepared = PreparedCase::Make(load_case);
      if (!prepared.ok()) return prepared.status();
      cases_.push_back(*std::move(prepared));
    }
    response_bytes_.resize(cases_.size());
    for (int64_t i = 0; i < options_.connections; ++i) {
      if (absl::Status status = Connect(); !status.ok()) return status;
    }
    return TryCases();
  }

  absl::StatusOr<LoadResult> Run(std::optional<double> rate, const std::string& label,
                                 LoadProgress& progress) {
    const double seconds = options_.duration_seconds;
    const bool with_echo = options_.echo.has_value();
    LoadSamples echoes;
    if (with_echo) {
      absl::StatusOr<LoadSamples> first =
          RunPhase(echoes_, seconds / 2, rate, label + "echo", progress);
      if (!first.ok()) return first.status();
      echoes.Add(*std::move(first));
    }
    absl::StatusOr<LoadSamples> load =
        RunPhase(connections_, seconds, rate, label + "requests", progress);
    if (!load.ok()) return load.status();
    LoadResult result;
    result.load = Summarize(*std::move(load), SampleStages::kPresent);
    if (!with_echo) return result;
    absl::StatusOr<LoadSamples> second =
        RunPhase(echoes_, seconds / 2, rate, label + "echo again", progress);
    if (!second.ok()) return second.status();
    echoes.Add(*std::move(second));
    result.echo = Summarize(std::move(echoes), SampleStages::kAbsent);
    return result;
  }

  const std::string& server_version() const { return server_version_; }
  const std::vector<std::string>& devices() const { return devices_; }

 private:
  /// Opens one more connection, so that none is opened while latencies are taken.
  absl::Status Connect() {
    client::ClientOptions client_options;
    client_options.retry.max_attempts = 1;
    absl::StatusOr<std::unique_ptr<client::Client>> client =
        client::Client::Create(options_.server, client_options);
    if (!client.ok()) return client.status();
    absl::StatusOr<client::ServerInfo> info = (*client)->GetServerInfo(options_.timeout);
    if (!info.ok()) return info.status();
    if (clients_.empty()) {
      server_version_ = info->version;
      for (const client::DeviceInfo& device : info->devices) devices_.push_back(device.name);
    }
    absl::StatusOr<std::unique_ptr<LoadConnection>> connection =
        OpenConnection(**client, cases_, options_.transport);
    if (!connection.ok()) return connection.status();
    connections_.push_back(*std::move(connection));
    if (options_.echo.has_value())
      echoes_.push_back(OpenEcho(**client, cases_, *options_.echo, response_bytes_));
    clients_.push_back(*std::move(client));
    return absl::OkStatus();
  }

  /// Learns how long responses are.
  absl::Status TryCases() {
    for (size_t i = 0; i < cases_.size(); ++i) {
      const absl::StatusOr<LoadReply> reply = connections_[0]->Send(i, 0, options_.timeout);
      if (!reply.ok()) return Named(options_.cases[i].Name(), reply.status());
      response_bytes_[i] = reply->message_bytes;
      if (echoes_.empty()) continue;
      const absl::StatusOr<LoadReply> echo = echoes_[0]->Send(i, 0, options_.timeout);
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

  absl::StatusOr<LoadSamples> RunPhase(
      const std::vector<std::unique_ptr<LoadConnection>>& connections, double seconds,
      std::optional<double> rate, const std::string& label, LoadProgress& progress) {
    progress.Begin(label, absl::Seconds(options_.warm_up_seconds), absl::Seconds(seconds));
    return normctl::RunPhase({.in_flight = options_.in_flight,
                              .rate = rate,
                              .warm_up = Seconds(options_.warm_up_seconds),
                              .duration = Seconds(seconds),
                              .timeout = options_.timeout},
                             {.connections = connections,
                              .sequence = sequence_,
                              .cases = cases_.size(),
                              .progress = progress});
  }

  const LoadOptions options_;
  const MixSequence sequence_;
  std::vector<PreparedCase> cases_;
  std::vector<int64_t> response_bytes_;  // of the message that answers each case
  std::string server_version_;
  std::vector<std::string> devices_;
  std::vector<std::unique_ptr<client::Client>> clients_;
  // Borrow what is above.
  std::vector<std::unique_ptr<LoadConnection>> connections_;
  std::vector<std::unique_ptr<LoadConnection>> echoes_;
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
