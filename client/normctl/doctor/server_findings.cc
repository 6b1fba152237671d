#include "client/normctl/doctor/server_findings.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/normctl/doctor/architectures.h"

namespace norm::normctl {
namespace {

constexpr absl::Duration kClocksApart = absl::Seconds(5);
// The kernels are within 1e-6; sums of squares in f32 would be off by more than 0.1 here.
constexpr double kTolerance = 1e-4;
// Of what a copy on a GPU of the same model moves. 8 MiB are computed within a few launches' time.
constexpr double kSlowKernel = 0.05;

Finding JudgePort(const ServerFacts& facts) {
  const std::string check = absl::StrCat(facts.address, " port");
  switch (facts.port.state) {
    case PortState::kNotTried:
      return {Severity::kOk, check, "not tried: no host and port", ""};
    case PortState::kNoName:
      return {Severity::kError, check, absl::StrCat("the name is not known: ", facts.port.detail),
              "check the name and the DNS of this machine or container"};
    case PortState::kRefused:
      return {Severity::kError, check, facts.port.detail,
              "start normd there, with --listen=0.0.0.0:PORT for other machines and containers "
              "(127.0.0.1 is the default)"};
    case PortState::kSilent:
      return {Severity::kError, check, facts.port.detail,
              "check the address, the firewall and network policies between"};
    case PortState::kOpen:
      break;
  }
  return {Severity::kOk, check, "open", ""};
}

/// What the lists of the server keep from this caller.
struct Refusal {
  bool refused = false;
  std::string unseen;  // what doctor does not see therefore
  std::string cure;
};

Refusal RefusalOf(const FailedQuestion& failed) {
  Refusal refusal;
  refusal.refused =
      failed.name != "health" &&  // which is open
      (absl::IsPermissionDenied(failed.status) || absl::IsUnauthenticated(failed.status));
  const bool admin = failed.name == "info";
  refusal.unseen = admin ? "version, devices and clock" : "results and speed";
  const std::string area = admin ? "admin" : "data";
  refusal.cure =
      absl::StrCat("to see them too, add this client to the server's lists: its token to --", area,
                   "_tokens (here: --token-file), or its certificate's name to --", area,
                   "_clients (here: --tls-cert, --tls-key)");
  return refusal;
}

std::string CureOfStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return "normd asks nobody who he is for its health: a proxy between does";
    case absl::StatusCode::kUnimplemented:
      return "what listens there is a gRPC server but no normd: check address and port";
    case absl::StatusCode::kDeadlineExceeded:
      return "the server is connected and silent: its log and metrics (normd_queue_requests) say "
             "what it waits for";
    case absl::StatusCode::kInternal:
      return "a CUDA failure of the server: its log has it; a device that is lost needs a new "
             "process, and normd exits with 4";
    default:
      return "the server's log says more";
  }
}

Finding JudgeFailure(const ServerFacts& facts, const FailedQuestion& failed) {
  const std::string check = absl::StrCat(facts.address, " ", failed.name);
  const std::string seen =
      absl::StrCat(absl::StatusCodeToString(failed.status.code()), ": ", failed.status.message());
  if (const Refusal refusal = RefusalOf(failed); refusal.refused) {
    const bool lets_in = facts.info.has_value() || facts.error.has_value();
    return {lets_in ? Severity::kWarning : Severity::kError, check,
            absl::StrCat(refusal.unseen, " not seen: ", seen), refusal.cure};
  }
  if (!client::IsServerUnreachable(failed.status))
    return {Severity::kError, check, seen, CureOfStatus(failed.status)};
  if (facts.port.speech == PortSpeech::kTextHttp) {
    return {Severity::kError, check,
            absl::StrCat("what listens there speaks HTTP in text, not gRPC: ", seen),
            "8470 is normd's port for calls, 8471 the one for metrics"};
  }
  const std::string words = absl::AsciiStrToLower(failed.status.message());
  const bool handshake_failed =
      absl::StrContains(words, "handshake failed") || absl::StrContains(words, "peer certificate");
  const bool takes_tls =
      facts.port.speech == PortSpeech::kTls || facts.port.speech == PortSpeech::kNothing;
  if (takes_tls && !handshake_failed) {
    return {Severity::kError, check,
            absl::StrCat("the server speaks TLS and ended the connection: ", seen),
            "without TLS options here: --tls-ca with its certificate authority (--tls for the "
            "system's); with them: --tls-cert and --tls-key, for it may ask for a client's "
            "certificate"};
  }
  if (facts.port.speech == PortSpeech::kPlainHttp2 && handshake_failed) {
    return {Severity::kError, check,
            absl::StrCat("the server speaks plain text, this client TLS: ", seen),
            "leave the TLS options out, or start normd with a certificate"};
  }
  if (handshake_failed) {
    return {Severity::kError, check, absl::StrCat("TLS fails: ", seen),
            "check that the certificate authority is the server's, that the certificate names the "
            "host of the address and "
            "has not expired, that clocks are right, and whether the server wants a client "
            "certificate"};
  }
  return {Severity::kError, check, seen,
          "no server answered: see the port above and the server's log"};
}

Finding JudgeHealth(const ServerFacts& facts) {
  const std::string check = absl::StrCat(facts.address, " health");
  if (*facts.health == client::Health::kServing) return {Severity::kOk, check, "SERVING", ""};
  if (facts.info.has_value() && facts.info->draining) {
    return {Severity::kWarning, check, "draining: it finishes what it has and ends",
            "none: a restart is under way"};
  }
  return {Severity::kError, check, "not SERVING",
          "every device is lost: its log says why; normd exits with 4 then"};
}

void JudgeInfo(const ServerFacts& facts, const MachineFacts& machine,
               std::vector<Finding>* findings) {
  const client::ServerInfo& info = *facts.info;
  const std::string version = absl::StrCat(facts.address, " version");
  if (info.version == machine.build.version) {
    findings->push_back(
        {Severity::kOk, version, absl::StrCat("normd ", info.version, ", as normctl"), ""});
  } else {
    findings->push_back({Severity::kWarning, version,
                         absl::StrCat("normd ", info.version, ", normctl ", machine.build.version),
                         "use both of one version: newer requests are refused by an older server"});
  }
  for (const client::DeviceInfo& device : info.devices) {
    const std::string check = absl::StrCat(facts.address, " ", device.name);
    if (!device.healthy) {
      findings->push_back(
          {Severity::kError, check,
           absl::StrCat(device.model, " is lost: a CUDA error like an illegal address"),
           "the process needs a restart (it exits with 4 when no device is left); if it comes "
           "back: dmesg (Xid), and "
           "compute-sanitizer normd ... with the same requests"});
    } else if (device.compute_capability > 0 &&
               !HasImage(info.cuda_architectures, device.compute_capability)) {
      findings->push_back(
          {Severity::kError, check,
           absl::StrFormat("%s, sm_%d: no kernel image: the server was built for %s", device.model,
                           device.compute_capability, absl::StrJoin(info.cuda_architectures, " ")),
           absl::StrCat("build it with NORM_CUDA_ARCHITECTURES=", device.compute_capability,
                        "-real")});
    } else if (device.compute_capability == 0 && !machine.driver.gpus.empty()) {
      findings->push_back(
          {Severity::kWarning, check,
           absl::StrCat("computes on the CPU (", device.model, "), and GPUs are here"),
           "where it runs on this machine: its log's first lines say why it took no GPU "
           "(--device=cuda insists)"});
    } else {
      findings->push_back({Severity::kOk, check, device.model, ""});
    }
  }
}

Finding JudgeClock(const ServerFacts& facts) {
  const std::string check = absl::StrCat(facts.address, " clock");
  if (!facts.clock_ahead.has_value()) {
    return {Severity::kNote, check, "not known: the server does not tell its time",
            "a normd of this version does"};
  }
  const std::string seen =
      absl::StrFormat("%.3f s ahead of this machine's", absl::ToDoubleSeconds(*facts.clock_ahead));
  if (absl::AbsDuration(*facts.clock_ahead) < kClocksApart) return {Severity::kOk, check, seen, ""};
  return {Severity::kWarning, check, seen,
          "set both (NTP): certificates, logs and traces are compared by time; deadlines are not"};
}

Finding JudgeResult(const ServerFacts& facts) {
  const std::string check = absl::StrCat(facts.address, " result");
  if (std::isnan(*facts.error)) {
    return {Severity::kError, check,
            absl::StrCat("NaN in a LayerNorm of finite numbers on ", facts.device),
            "a broken GPU or a broken build: memory errors (nvidia-smi -q -d ECC), then `normctl "
            "verify` and the tests of "
            "tests/run_gpu.sh. NaN in your results with this right: your inputs hold NaN or "
            "infinity, or eps is 0 on a constant row"};
  }
  const std::string seen =
      absl::StrFormat("largest error of a LayerNorm on %s: %.2g", facts.device, *facts.error);
  if (*facts.error <= kTolerance) return {Severity::kOk, check, seen, ""};
  return {Severity::kError, check, absl::StrCat(seen, ", more than 1e-4"),
          "as for NaN: memory errors of the GPU, then `normctl verify`"};
}

Finding JudgeKernel(const ServerFacts& facts, const MachineFacts& machine) {
  const std::string check = absl::StrCat(facts.address, " kernel");
  std::string seen = absl::StrFormat("an RMSNorm of 8 MiB moves %.0f GB/s on %s",
                                     *facts.kernel_rate * 1e-9, facts.device);
  const auto device =
      std::find_if(facts.info->devices.begin(), facts.info->devices.end(),
                   [&](const client::DeviceInfo& one) { return one.name == facts.device; });
  const auto like = std::find_if(machine.driver.gpus.begin(), machine.driver.gpus.end(),
                                 [&](const GpuFacts& gpu) {
                                   return device != facts.info->devices.end() &&
                                          gpu.name == device->model && gpu.copies.has_value();
                                 });
  if (like == machine.driver.gpus.end()) return {Severity::kOk, check, seen, ""};
  absl::StrAppendFormat(&seen, "; a copy %.0f", like->copies->on_device * 1e-9);
  if (*facts.kernel_rate >= kSlowKernel * like->copies->on_device)
    return {Severity::kOk, check, seen, ""};
  return {Severity::kWarning, check, seen,
          "slow kernels: others use the GPU (nvidia-smi), its clocks are lowered (nvidia-smi -q -d "
          "PERFORMANCE), or a debug "
          "build; `normbench kernels` compares all of them with a copy"};
}

}  // namespace

std::vector<Finding> JudgeServer(const ServerFacts& facts, const MachineFacts& machine) {
  std::vector<Finding> findings = {JudgePort(facts)};
  if (facts.health.has_value()) findings.push_back(JudgeHealth(facts));
  if (facts.info.has_value()) {
    JudgeInfo(facts, machine, &findings);
    findings.push_back(JudgeClock(facts));
  }
  if (facts.error.has_value()) findings.push_back(JudgeResult(facts));
  if (facts.kernel_rate.has_value() && facts.info.has_value())
    findings.push_back(JudgeKernel(facts, machine));
  for (const FailedQuestion& failed : facts.failures)
    findings.push_back(JudgeFailure(facts, failed));
  return findings;
}

Finding JudgeCredentials(const std::string& address, const absl::Status& status) {
  return {Severity::kError, absl::StrCat(address, " credentials"), std::string(status.message()),
          "mend or replace what is named; until then the server is not asked more than can be "
          "asked without it"};
}

}  // namespace norm::normctl
