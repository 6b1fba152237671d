// norm_soak: many clients send mixed requests to a running server for a while; every response is
// checked. Exit 0 only if nothing was wrong. Three of four clients have one request in flight, the
// fourth eight on a stream, so 230 clients have 629. Ten minutes with ten thousand connections and
// flat memory; and ten times what a server with 64 places takes (normd --slots=3
// --max_queue_requests=61), against what it does for the same clients on as many connections when
// they have 63 requests in flight together, in the same run:
//   norm_soak --seconds=590 --clients=32 --calls_per_connection=100 --min_connections=10000
//             --metrics=ADDRESS --max_growth_mib=64 --json=FILE
//   norm_soak --peak_seconds=20 --peak_in_flight=63 --seconds=120 --clients=230 --overload
//             --min_goodput=0.9 --metrics=ADDRESS --max_growth_mib=64 --json=FILE
// deploy/with-normd.sh starts a server for it and tells its addresses. Each on cores of its own
// (with-normd.sh taskset -c 0-7 normd ... -- taskset -c 8-15 norm_soak ...), the comparison is of the
// server alone: on shared ones the clients, who do more when they are refused, take what it lacks.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tests/integration/server_memory.h"
#include "tests/integration/soak_load.h"
#include "tests/support/http_get.h"

ABSL_FLAG(std::string, server, "127.0.0.1:8470", "Address of the server, host:port.");
ABSL_FLAG(std::string, metrics, "",
          "Its metrics on this machine, host:port: watches its memory and processor time.");
ABSL_FLAG(double, seconds, 60, "How long to send.");
ABSL_FLAG(int, clients, 64, "Concurrent clients.");
ABSL_FLAG(int, streams_percent, 25, "Of them: use a stream with eight requests in flight.");
ABSL_FLAG(int, calls_per_connection, 0,
          "Requests after which a client opens another connection; 0: it keeps its first.");
ABSL_FLAG(int64_t, min_connections, 0, "Fewer connections than this are a failure.");
ABSL_FLAG(double, peak_seconds, 0,
          "Before that, how long they send no more than the server takes; 0: not at all.");
ABSL_FLAG(int, peak_in_flight, 63, "How many requests of all --clients together that is.");
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

/// Processor time until now; negative where it is not known.
struct CpuSeconds {
  double server = -1;
  double clients = -1;
};

CpuSeconds CpuNow() {
  CpuSeconds now;
  if (const std::string metrics = absl::GetFlag(FLAGS_metrics); !metrics.empty()) {
    const std::string reply = HttpGet(metrics, "/metrics");
    const std::string series = "\nprocess_cpu_seconds_total ";
    if (const size_t at = reply.find(series); at != std::string::npos) {
      const size_t begin = at + series.size();
      if (!absl::SimpleAtod(reply.substr(begin, reply.find('\n', begin) - begin), &now.server))
        now.server = -1;
    }
  }
  rusage own{};
  if (getrusage(RUSAGE_SELF, &own) == 0) {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    now.clients = seconds(own.ru_utime) + seconds(own.ru_stime);
  }
  return now;
}

struct Phase {
  int clients = 0;
  double seconds = 0;
  CpuSeconds cpu;
  SoakTotals totals;

  double responses_per_second() const {
    return static_cast<double>(totals.responses.load()) / seconds;
  }

  nlohmann::json Report() const {
    return {{"clients", clients},
            {"seconds", seconds},
            {"server_cpu_seconds", cpu.server},
            {"clients_cpu_seconds", cpu.clients},
            {"connections", totals.connections.load()},
            {"responses", totals.responses.load()},
            {"stream_responses", totals.stream_responses.load()},
            {"responses_per_second", responses_per_second()},
            {"gb", static_cast<double>(totals.bytes.load()) * 1e-9},
            {"refused", totals.refused.load()},
            {"errors", totals.errors.load()},
            {"wrong", totals.wrong.load()},
            {"bits_differ", totals.bits_differ.load()}};
  }

  void Print(const char* name) const {
    std::printf(
        "%s: %d clients, %lld connections, %.1f s (processors: server %.1f s, clients %.1f s): "
        "%lld "
        "responses (%.0f/s, %.3f GB), %lld refused, %lld errors, %lld wrong, %lld with other "
        "bits\n",
        name, clients, static_cast<long long>(totals.connections), seconds, cpu.server, cpu.clients,
        static_cast<long long>(totals.responses), responses_per_second(),
        static_cast<double>(totals.bytes) * 1e-9, static_cast<long long>(totals.refused),
        static_cast<long long>(totals.errors), static_cast<long long>(totals.wrong),
        static_cast<long long>(totals.bits_differ));
    std::fflush(stdout);
  }
};

void RunPhase(SoakLoad& load, int in_flight, double seconds, Phase& phase) {
  phase.clients = absl::GetFlag(FLAGS_clients);
  const CpuSeconds before = CpuNow();
  const absl::Time start = absl::Now();
  load.Run(phase.clients, start + absl::Seconds(seconds), phase.totals, in_flight);
  phase.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  const CpuSeconds after = CpuNow();
  if (before.server >= 0 && after.server >= 0) phase.cpu.server = after.server - before.server;
  phase.cpu.clients = after.clients - before.clients;
}

SoakOptions Options() {
  SoakOptions options;
  options.server = absl::GetFlag(FLAGS_server);
  options.requests = absl::GetFlag(FLAGS_requests);
  options.max_elements = absl::GetFlag(FLAGS_max_elements);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.streams_percent = absl::GetFlag(FLAGS_streams_percent);
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
    const int in_flight = absl::GetFlag(FLAGS_peak_in_flight);
    RunPhase(load, in_flight, kWarmUpSeconds, warm_up);
    RunPhase(load, in_flight, peak_seconds, peak);
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
  RunPhase(load, SoakLoad::kNoLimit, seconds, main);
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
  // As normd does, and for its reason (server/main.cc).
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return norm::test::Run();
}
