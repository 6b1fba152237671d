#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/normctl/commands.h"
#include "client/normctl/doctor/doctor_report.h"
#include "client/normctl/doctor/machine_findings.h"
#include "client/normctl/doctor/machine_probe.h"
#include "client/normctl/doctor/server_findings.h"
#include "client/normctl/doctor/server_probe.h"
#include "client/normctl/server_flags.h"

namespace norm::normctl {
namespace {

const std::map<std::string, WantedDevice> kDevices = {
    {"auto", WantedDevice::kAuto}, {"cuda", WantedDevice::kCuda}, {"cpu", WantedDevice::kCpu}};

struct DoctorFlags {
  ServerFlags server;
  CLI::Option* server_option = nullptr;
  WantedDevice device = WantedDevice::kAuto;
  CopyTiming copies = CopyTiming::kMeasured;
};

BuildFacts ThisBuild() {
  return {.version = NORMD_VERSION,
          .cuda_version = NORM_CUDA_VERSION,
          .architectures = absl::StrSplit(NORM_CUDA_ARCHITECTURES, ' ', absl::SkipEmpty())};
}

void Append(std::vector<Finding> more, std::vector<Finding>* findings) {
  for (Finding& finding : more) findings->push_back(std::move(finding));
}

/// Each replica of a list on its own. Returns whether all could be reached.
bool AskServers(const DoctorFlags& flags, const MachineFacts& machine,
                std::vector<Finding>* findings) {
  bool reached = true;
  for (const std::string& address : client::Replicas(flags.server.server)) {
    ServerFlags one = flags.server;
    one.server = address;
    absl::StatusOr<std::unique_ptr<client::Client>> client = one.Connect();
    if (!client.ok()) {
      findings->push_back(JudgeCredentials(address, client.status()));
      one.DropToken();  // health needs none, nor does a server without lists
      client = one.Connect();
    }
    const ServerFacts facts =
        LookAtServer(address, client.ok() ? client->get() : nullptr, one.timeout);
    reached = reached && !IsUnreachable(facts);
    Append(JudgeServer(facts, machine), findings);
  }
  return reached;
}

ExitCode RunDoctor(const DoctorFlags& flags) {
  const MachineFacts machine = LookAtMachine(ThisBuild(), flags.copies);
  std::vector<Finding> findings = JudgeGpus(machine, flags.device);
  Append(JudgeSystem(machine), &findings);
  const bool reached = flags.server_option->count() == 0 || AskServers(flags, machine, &findings);
  std::cout << (flags.server.format == OutputFormat::kJson ? DoctorJson(findings)
                                                           : DoctorText(findings));
  if (!reached) return kServerUnreachable;
  return Count(findings, Severity::kError) > 0 ? kFailure : kSuccess;
}

}  // namespace

void AddDoctorCommand(CLI::App* app, ExitCode* result) {
  CLI::App* command = app->add_subcommand("doctor",
                                          "What is wrong here, and its cure: driver, GPUs, limits, "
                                          "and with --server a server. Exit status: 0 no "
                                          "error (warnings and notes do not count), 1 an error, 2 "
                                          "bad usage, 3 the server is unreachable");
  auto flags = std::make_shared<DoctorFlags>();
  flags->server.timeout = absl::Seconds(5);
  flags->server.attempts = 1;
  flags->server.AddTo(command);
  flags->server_option = command->get_option("--server");
  command
      ->add_option_function<std::string>(
          "--device",
          [raw = flags.get()](const std::string& word) { raw->device = kDevices.at(word); },
          "As of the normd that is to run here: auto is content with the CPU, cuda needs a GPU, "
          "cpu looks for none [auto]")
      ->check(CLI::IsMember(kDevices));
  command->add_flag_callback(
      "--no-copies", [raw = flags.get()] { raw->copies = CopyTiming::kSkipped; },
      "Do not time copies, which take 0.5 s and 1.1 GiB of each GPU");
  command->callback([flags, result] { *result = RunDoctor(*flags); });
}

}  // namespace norm::normctl
