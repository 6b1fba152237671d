#include <iostream>
#include <memory>
#include <string>

#include "client/normctl/commands.h"
#include "client/normctl/server_flags.h"
#include "nlohmann/json.hpp"

namespace norm::normctl {
namespace {

struct HealthFlags {
  ServerFlags server;
  std::string service;
};

const char* HealthName(client::Health health) {
  switch (health) {
    case client::Health::kServing:
      return "SERVING";
    case client::Health::kNotServing:
      return "NOT_SERVING";
    case client::Health::kServiceUnknown:
      return "SERVICE_UNKNOWN";
    case client::Health::kUnknown:
      break;
  }
  return "UNKNOWN";
}

ExitCode RunHealth(const HealthFlags& flags) {
  absl::StatusOr<std::unique_ptr<client::Client>> connected = flags.server.Connect();
  if (!connected.ok()) return ReportError(connected.status());
  absl::StatusOr<client::Health> health =
      (*connected)->CheckHealth(flags.service, flags.server.timeout);
  if (!health.ok()) return ReportError(health.status());
  if (flags.server.format == OutputFormat::kJson) {
    std::cout
        << nlohmann::json({{"service", flags.service}, {"status", HealthName(*health)}}).dump()
        << '\n';
  } else {
    std::cout << HealthName(*health) << '\n';
  }
  return *health == client::Health::kServing ? kSuccess : kFailure;
}

}  // namespace

void AddHealthCommand(CLI::App* app, ExitCode* result) {
  CLI::App* command = app->add_subcommand("health", "Health of the server: exit 0 when it serves");
  auto flags = std::make_shared<HealthFlags>();
  flags->server.AddTo(command);
  command->add_option("--service", flags->service, "One gRPC service instead of the whole server");
  command->callback([flags, result] { *result = RunHealth(*flags); });
}

}  // namespace norm::normctl
