#include "client/normctl/doctor/server_probe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/types/span.h"

namespace norm::normctl {
namespace {

using client::TensorView;

constexpr int64_t kRows = 2048;
constexpr int64_t kHiddenSize = 1024;
constexpr double kEps = 1e-5;

/// 4096, 4096.5, ... 4099.5 and again: exact in f32. Squares summed up in f32 would lose the deviation.
std::vector<float> LargeMean() {
  std::vector<float> values(static_cast<size_t>(kHiddenSize));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 4096.0F + 0.5F * static_cast<float>(i % 8);
  return values;
}

/// Of 0, 0.5, ... 3.5 in equal parts: mean 1.75, variance (64 - 1) / 12 * 0.25.
double Exact(size_t i) {
  return (0.5 * static_cast<double>(i % 8) - 1.75) / std::sqrt(63.0 / 48.0 + kEps);
}

double LargestError(const std::vector<float>& y) {
  double largest = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double error = std::abs(static_cast<double>(y[i]) - Exact(i));
    if (std::isnan(error)) return error;
    largest = std::max(largest, error);
  }
  return largest;
}

absl::Status AskForHealth(client::Client& client, absl::Duration timeout, ServerFacts* facts) {
  absl::StatusOr<client::Health> health = client.CheckHealth("", timeout);
  if (health.ok()) facts->health = *health;
  return health.status();
}

absl::Status AskForInfo(client::Client& client, absl::Duration timeout, ServerFacts* facts) {
  const absl::Time before = absl::Now();
  absl::StatusOr<client::ServerInfo> info = client.GetServerInfo(timeout);
  if (!info.ok()) return info.status();
  if (info->time > absl::UnixEpoch())
    facts->clock_ahead = info->time - (before + (absl::Now() - before) / 2);
  facts->info = *std::move(info);
  return absl::OkStatus();
}

absl::Status TryLayerNorm(client::Client& client, absl::Duration timeout, ServerFacts* facts) {
  const std::vector<float> x = LargeMean();
  absl::StatusOr<client::ForwardResult> result = client.LayerNorm(
      {.x = TensorView::Of(absl::MakeConstSpan(x), {1, kHiddenSize}), .eps = kEps}, timeout);
  if (!result.ok()) return result.status();
  std::vector<float> y(x.size());
  if (result->y.elements() != kHiddenSize || result->y.dtype() != DType::kF32)
    return absl::InternalError("y is not of the shape and dtype of x");
  result->y.CopyTo(reinterpret_cast<std::byte*>(y.data()));
  facts->error = LargestError(y);
  facts->device = result->timing.device;
  return absl::OkStatus();
}

/// The best of a few: what the device can do, not what else it does.
absl::Status TimeKernel(client::Client& client, absl::Duration timeout, ServerFacts* facts) {
  if (facts->device.empty() || facts->device == "cpu") return absl::OkStatus();
  const std::vector<float> x(static_cast<size_t>(kRows * kHiddenSize), 1.0F);
  for (int i = 0; i < 5; ++i) {
    absl::StatusOr<client::ForwardResult> result = client.RmsNorm(
        {.x = TensorView::Of(absl::MakeConstSpan(x), {kRows, kHiddenSize})}, timeout);
    if (!result.ok()) return result.status();
    const double bytes = 2.0 * sizeof(float) * static_cast<double>(x.size());
    if (result->timing.kernel_us > 0)
      facts->kernel_rate =
          std::max(facts->kernel_rate.value_or(0), bytes / (1e-6 * result->timing.kernel_us));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsUnreachable(const ServerFacts& facts) {
  if (facts.port.state != PortState::kOpen && facts.port.state != PortState::kNotTried &&
      !facts.asked) {
    return true;
  }
  return std::any_of(
      facts.failures.begin(), facts.failures.end(),
      [](const FailedQuestion& failed) { return client::IsServerUnreachable(failed.status); });
}

ServerFacts LookAtServer(const std::string& address, client::Client* client,
                         absl::Duration timeout) {
  ServerFacts facts;
  facts.address = address;
  facts.port = ProbePort(address, timeout);
  facts.asked = client != nullptr;
  if (!facts.asked) return facts;
  using Ask = absl::Status (*)(client::Client&, absl::Duration, ServerFacts*);
  constexpr std::pair<const char*, Ask> kQuestions[] = {{"health", AskForHealth},
                                                        {"info", AskForInfo},
                                                        {"layer_norm", TryLayerNorm},
                                                        {"rms_norm", TimeKernel}};
  for (const auto& [name, ask] : kQuestions) {
    if (IsUnreachable(facts)) break;
    if (absl::Status status = ask(*client, timeout, &facts); !status.ok())
      facts.failures.push_back({name, std::move(status)});
  }
  return facts;
}

}  // namespace norm::normctl
