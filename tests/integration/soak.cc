// norm_soak: many clients send mixed requests to a running server for a while; every response is
// checked. Exit 0 only if nothing was wrong. Three of four clients have one request in flight, the
// fourth eight on a stream, so 23 clients have 63. Ten minutes with ten thousand connections and
// flat memory; and ten times what a server with 64 places takes (normd --slots=3
// --max_queue_requests=61), against what it did for 63 requests in flight in the same run:
//   norm_soak --seconds=590 --clients=32 --calls_per_connection=100 --min_connections=10000
//             --metrics=ADDRESS --max_growth_mib=64 --json=FILE
//   norm_soak --peak_seconds=20 --peak_clients=23 --seconds=120 --clients=230 --overload
//             --min_goodput=0.9 --metrics=ADDRESS --max_growth_mib=64 --json=FILE
// deploy/with-normd.sh starts a server for it and tells its addresses.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tests/integration/server_memory.h"
#include "tests/integration/soak_load.h"

ABSL_FLAG(std::string, server, "127.0.0.1:8470", "Address of the server, host:port.");
ABSL_FLAG(std::string, metrics, "", "Its metrics on this machine, host:port: watches its memory.");
ABSL_FLAG(double, seconds, 60, "How long to send.");
ABSL_FLAG(int, clients, 64, "Concurrent clients; every fourth one uses a stream.");
ABSL_FLAG(int, calls_per_connection, 0,
          "Requests after which a client opens another connection; 0: it keeps its first.");
ABSL_FLAG(int64_t, min_connections, 0, "Fewer connections than this are a failure.");
ABSL_FLAG(double, peak_seconds, 0, "Before that, how long --peak_clients send; 0: not at all.");
ABSL_FLAG(int, peak_clients, 23, "As many as the server takes without refusing.");
ABSL_FLAG(bool, overload, false,
          "UNAVAILABLE with a pushback is an answer, counted as refused; without one it is an "
          "error. A refused client waits as long as it is told to.");
ABSL_FLAG(bool, obey_pushback, true, "Whether it does.");
ABSL_FLAG(double, min_goodput, 0, "Share of the peak's responses/s that --clients must reach.");
ABSL_FLAG(
    double, max_growth_mib, 0,
    "With --metrics: how much resident, pinned, pooled and GPU memory may each grow after the "
    "first fifth; 0: not checked.");
ABSL_FLAG(int, requests, 96, "Distinct requests to draw from.");
ABSL_FLAG(int64_t, max_elements, 32768, "Largest x of a request, in elements.");
ABSL_FLAG(uint64_t, seed, 1, "First seed of the requests.");
ABSL_FLAG(std::string, json, "", "File for the figures.");

namespace norm::test {
namespace {

/// Responses of the first seconds of a phase come from a server that is not in its stride.
constexpr double kWarmUpSeconds = 1;

struct Phase {
  int clients = 0;
  double seconds = 0;
  SoakTotals totals;

  double responses_per_second() const {
    return static_cast<double>(totals.responses.load()) / seconds;
  }

  nlohmann::json Report() const {
    return {{"clients", clients},
            {"seconds", seconds},
            {"connections", totals.connections.load()},
            {"responses", totals.responses.load()},
            {"responses_per_second", responses_per_second()},
            {"gb", static_cast<double>(totals.bytes.load()) * 1e-9},
            {"refused", totals.refused.load()},
            {"errors", totals.errors.load()},
            {"wrong", totals.wrong.load()},
            {"bits_differ", totals.bits_differ.load()}};
  }

  void Print(const char* name) const {
    std::printf(
        "%s: %d clients, %lld connections, %.1f s: %lld responses (%.0f/s, %.3f GB), %lld refused, "
        "%lld errors, %lld wrong, %lld with other bits\n",
        name, clients, static_cast<long long>(totals.connections), seconds,
        static_cast<long long>(totals.responses), responses_per_second(),
        static_cast<double>(totals.bytes) * 1e-9, static_cast<long long>(totals.refused),
        static_cast<long long>(totals.errors), static_cast<long long>(totals.wrong),
        static_cast<long long>(totals.bits_differ));
    std::fflush(stdout);
  }
};

void RunPhase(SoakLoad& load, int clients, double seconds, Phase& phase) {
  phase.clients = clients;
  const absl::Time start = absl::Now();
  load.Run(clients, start + absl::Seconds(seconds), phase.totals);
  phase.seconds = absl::ToDoubleSeconds(absl::Now() - start);
}

SoakOptions Options() {
  SoakOptions options;
  options.server = absl::GetFlag(FLAGS_server);
  options.requests = absl::GetFlag(FLAGS_requests);
  options.max_elements = absl::GetFlag(FLAGS_max_elements);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.calls_per_connection = absl::GetFlag(FLAGS_calls_per_connection);
  options.refusals_allowed = absl::GetFlag(FLAGS_overload);
  options.obeys_pushback = absl::GetFlag(FLAGS_obey_pushback);
  return options;
}

/// The memory of the watched server; false where it is not as it should be.
bool ReportMemory(MemoryWatch& watch, nlohmann::json& report) {
  const std::vector<MemorySample> samples = watch.Stop();
  if (samples.size() < 5) {
    std::fprintf(stderr, "norm_soak: --metrics: answered %zu times, too seldom\n", samples.size());
    return false;
  }
  report["memory"] = MemoryReport(samples, samples.size() / 5, absl::GetFlag(FLAGS_max_growth_mib));
  std::printf("memory: %s\n", report["memory"].dump().c_str());
  return report["memory"]["within_limits"].get<bool>();
}

int Run() {
  SoakLoad load(Options());
  nlohmann::json report;
  Phase warm_up, peak, main;
  bool good = true;
  const double peak_seconds = absl::GetFlag(FLAGS_peak_seconds);
  if (peak_seconds > 0) {
    const int clients = absl::GetFlag(FLAGS_peak_clients);
    RunPhase(load, clients, kWarmUpSeconds, warm_up);
    RunPhase(load, clients, peak_seconds, peak);
    peak.Print("peak");
    report["peak"] = peak.Report();
    good = warm_up.totals.good() && peak.totals.good();
  }
  const double seconds = absl::GetFlag(FLAGS_seconds);
  std::unique_ptr<MemoryWatch> watch;
  if (!absl::GetFlag(FLAGS_metrics).empty()) {
    watch = std::make_unique<MemoryWatch>(absl::GetFlag(FLAGS_metrics),
                                          absl::Seconds(std::max(0.2, seconds / 100)));
  }
  RunPhase(load, absl::GetFlag(FLAGS_clients), seconds, main);
  if (watch != nullptr) good &= ReportMemory(*watch, report);
  report["load"] = main.Report();
  good &= main.totals.good();
  good &= main.totals.connections >= absl::GetFlag(FLAGS_min_connections);
  if (peak_seconds > 0) {
    const double goodput = main.responses_per_second() / peak.responses_per_second();
    report["goodput_of_peak"] = goodput;
    std::printf("goodput: %.3f of the peak\n", goodput);
    good &= goodput >= absl::GetFlag(FLAGS_min_goodput);
  }
  report["good"] = good;
  main.Print("soak");
  if (const std::string path = absl::GetFlag(FLAGS_json); !path.empty()) {
    std::ofstream file(path);
    file << report.dump(1) << "\n";
    good &= file.good();
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace norm::test

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return norm::test::Run();
}
