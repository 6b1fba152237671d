// norm_soak: many clients send mixed requests to a running server for a while; every response is
// checked against the float64 oracle, and against the first response to the same request bit for
// bit. Exit 0 only if nothing was wrong. Ten minutes with ten thousand connections, and ten times
// what a small server takes:
//   norm_soak --seconds=600 --clients=32 --calls_per_connection=100 --pid=P --max_growth_mib=64
//   norm_soak --seconds=120 --clients=640 --overload --pid=P --max_growth_mib=64
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "tests/integration/checked_request.h"

ABSL_FLAG(std::string, server, "127.0.0.1:8470", "Address of the server, host:port.");
ABSL_FLAG(int, pid, 0, "Process id of the server on this machine: reports its resident memory.");
ABSL_FLAG(double, seconds, 60, "How long to send.");
ABSL_FLAG(int, clients, 64, "Concurrent clients; every fourth one uses a stream.");
ABSL_FLAG(int, calls_per_connection, 0,
          "Requests after which a client opens another connection; 0: it keeps its first.");
ABSL_FLAG(
    bool, overload, false,
    "UNAVAILABLE with a pushback is an answer, counted as refused; without one it is an error.");
ABSL_FLAG(int, max_growth_mib, 0,
          "With --pid: how much resident memory may grow after the first fifth; 0: not checked.");
ABSL_FLAG(int, requests, 96, "Distinct requests to draw from.");
ABSL_FLAG(int64_t, max_elements, 32768, "Largest x of a request, in elements.");
ABSL_FLAG(uint64_t, seed, 1, "First seed of the requests.");

namespace norm::test {
namespace {

using norm::v1::NormalizationService;
using norm::v1::NormalizeBackwardResponse;
using norm::v1::NormalizeResponse;
using norm::v1::StreamRequest;
using norm::v1::StreamResponse;

constexpr int kStreamDepth = 8;

/// A request, its oracle, and the bytes of its first response.
struct Case {
  Case(uint64_t seed, int64_t max_elements) : request(seed, max_elements) {}

  CheckedRequest request;
  std::mutex mutex;
  std::string first;  // serialized without timing
};

struct Totals {
  std::atomic<int64_t> responses{0};
  std::atomic<int64_t> refused{0};
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> errors{0};
  std::atomic<int64_t> wrong{0};
  std::atomic<int64_t> bits_differ{0};
  std::atomic<int64_t> bytes{0};
};

class Soak {
 public:
  Soak() {
    const int count = absl::GetFlag(FLAGS_requests);
    for (int i = 0; i < count; ++i) {
      cases_.push_back(std::make_unique<Case>(absl::GetFlag(FLAGS_seed) + static_cast<uint64_t>(i),
                                              absl::GetFlag(FLAGS_max_elements)));
    }
  }

  int Run() {
    const absl::Time start = absl::Now();
    end_ = start + absl::Seconds(absl::GetFlag(FLAGS_seconds));
    std::vector<std::thread> clients;
    for (int i = 0; i < absl::GetFlag(FLAGS_clients); ++i) {
      clients.emplace_back([this, i] { i % 4 == 3 ? RunStreams(i) : RunUnary(i); });
    }
    std::thread reporter([this, start] { Report(start); });
    for (std::thread& client : clients) client.join();
    stop_reporting_.store(true);
    reporter.join();
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    std::printf(
        "soak: %d clients, %lld connections, %.1f s: %lld responses (%.0f/s, %.3f GB), %lld "
        "refused, %lld errors, %lld wrong, %lld with other bits\n",
        absl::GetFlag(FLAGS_clients), static_cast<long long>(totals_.connections), seconds,
        static_cast<long long>(totals_.responses), static_cast<double>(totals_.responses) / seconds,
        static_cast<double>(totals_.bytes) * 1e-9, static_cast<long long>(totals_.refused),
        static_cast<long long>(totals_.errors), static_cast<long long>(totals_.wrong),
        static_cast<long long>(totals_.bits_differ));
    const bool good = totals_.responses > 0 && totals_.errors == 0 && totals_.wrong == 0 &&
                      totals_.bits_differ == 0 && MemoryIsFlat();
    return good ? 0 : 1;
  }

 private:
  std::unique_ptr<NormalizationService::Stub> Connect() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    totals_.connections.fetch_add(1);
    return NormalizationService::NewStub(grpc::CreateCustomChannel(
        absl::GetFlag(FLAGS_server), grpc::InsecureChannelCredentials(), arguments));
  }

  template <typename Response>
  void Check(Case& one, Response response) {
    totals_.responses.fetch_add(1);
    totals_.bytes.fetch_add(static_cast<int64_t>(response.ByteSizeLong()));
    const ::testing::AssertionResult correct = one.request.Check(response);
    if (!correct) {
      totals_.wrong.fetch_add(1);
      Complain(correct.message());
    }
    response.clear_timing();
    std::string bytes = response.SerializeAsString();
    const std::lock_guard lock(one.mutex);
    if (one.first.empty()) {
      one.first = std::move(bytes);
    } else if (one.first != bytes) {
      totals_.bits_differ.fetch_add(1);
      Complain(absl::StrCat("other bits than before: ", one.request.label()));
    }
  }

  void CountError(const std::string& label, int code, const std::string& message) {
    totals_.errors.fetch_add(1);
    Complain(absl::StrCat(label, ": code ", code, ": ", message));
  }

  /// The first few problems, so that a broken server does not fill a disk.
  void Complain(const std::string& text) {
    if (complaints_.fetch_add(1) < 20) std::fprintf(stderr, "norm_soak: %s\n", text.c_str());
  }

  /// Whether the server said when to come back, and that is an answer here.
  bool IsRefusal(int code, bool has_pushback) {
    if (!absl::GetFlag(FLAGS_overload) || code != grpc::StatusCode::UNAVAILABLE || !has_pushback) {
      return false;
    }
    totals_.refused.fetch_add(1);
    return true;
  }

  void RunUnary(int client) {
    std::mt19937_64 random(static_cast<uint64_t>(client) + 1000);
    const int per_connection = absl::GetFlag(FLAGS_calls_per_connection);
    auto stub = Connect();
    for (int calls = 1; absl::Now() < end_; ++calls) {
      if (per_connection != 0 && calls % per_connection == 0) stub = Connect();
      Case& one = *cases_[random() % cases_.size()];
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      grpc::Status status;
      if (one.request.direction() == Direction::kForward) {
        NormalizeResponse response;
        status = stub->Normalize(&context, one.request.forward(), &response);
        if (status.ok()) Check(one, std::move(response));
      } else {
        NormalizeBackwardResponse response;
        status = stub->NormalizeBackward(&context, one.request.backward(), &response);
        if (status.ok()) Check(one, std::move(response));
      }
      const bool has_pushback =
          context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms") > 0;
      if (!status.ok() && !IsRefusal(status.error_code(), has_pushback)) {
        CountError(one.request.label(), status.error_code(), status.error_message());
      }
    }
  }

  void RunStreams(int client) {
    std::mt19937_64 random(static_cast<uint64_t>(client) + 1000);
    while (absl::Now() < end_) RunStream(random);
  }

  /// One stream on a connection of its own.
  void RunStream(std::mt19937_64& random) {
    const auto per_connection = static_cast<size_t>(absl::GetFlag(FLAGS_calls_per_connection));
    auto stub = Connect();
    grpc::ClientContext context;
    auto stream = stub->NormalizeStream(&context);
    std::vector<Case*> sent;
    size_t answered = 0;
    const auto send = [&] {
      Case* one = cases_[random() % cases_.size()].get();
      StreamRequest request;
      request.set_id(sent.size());
      if (one->request.direction() == Direction::kForward) {
        *request.mutable_forward() = one->request.forward();
      } else {
        *request.mutable_backward() = one->request.backward();
      }
      sent.push_back(one);
      return stream->Write(request);
    };
    bool open = true;
    for (int i = 0; i < kStreamDepth && open; ++i) open = send();
    StreamResponse response;
    while (answered < sent.size() && stream->Read(&response)) {
      ++answered;
      const bool more = per_connection == 0 || sent.size() < per_connection;
      if (response.id() >= sent.size() || sent[response.id()] == nullptr) {
        CountError("stream", 0, absl::StrCat("unknown or repeated id ", response.id()));
        continue;
      }
      Case& one = *sent[response.id()];
      sent[response.id()] = nullptr;
      if (response.status().code() != 0) {
        // RetryInfo is the only detail that UNAVAILABLE has.
        if (IsRefusal(response.status().code(), response.status().details_size() == 1)) {
          if (absl::Now() < end_ && more) open = send();
          continue;
        }
        CountError(one.request.label(), response.status().code(), response.status().message());
      } else if (response.has_forward()) {
        Check(one, response.forward());
      } else {
        Check(one, response.backward());
      }
      if (absl::Now() < end_ && more) open = send();
    }
    stream->WritesDone();
    while (stream->Read(&response)) CountError("stream", 0, "unasked response");
    const grpc::Status status = stream->Finish();
    if (!status.ok()) CountError("stream", status.error_code(), status.error_message());
  }

  static int64_t ResidentKiB(int pid) {
    long long kib = -1;
    if (std::FILE* file = std::fopen(absl::StrCat("/proc/", pid, "/status").c_str(), "r")) {
      char line[256];
      while (std::fgets(line, sizeof(line), file) != nullptr) {
        if (std::sscanf(line, "VmRSS: %lld kB", &kib) == 1) break;
      }
      std::fclose(file);
    }
    return kib;
  }

  /// After the reporter has ended.
  bool MemoryIsFlat() const {
    const int allowed = absl::GetFlag(FLAGS_max_growth_mib);
    if (allowed == 0) return true;
    const size_t settled = resident_mib_.size() / 5;
    if (resident_mib_.size() < 5 || resident_mib_[settled] < 0) {
      std::fprintf(stderr, "norm_soak: --max_growth_mib: the memory of --pid was not read\n");
      return false;
    }
    const int64_t growth = resident_mib_.back() - resident_mib_[settled];
    std::printf("soak: resident memory grew by %lld MiB, allowed are %d\n",
                static_cast<long long>(growth), allowed);
    return growth <= allowed;
  }

  void Report(absl::Time start) {
    absl::Time next = start;
    const absl::Duration interval =
        std::max(absl::Seconds(1), absl::Seconds(absl::GetFlag(FLAGS_seconds)) / 10);
    while (!stop_reporting_.load()) {
      absl::SleepFor(absl::Milliseconds(100));
      if (absl::Now() < next + interval) continue;
      next += interval;
      std::string memory;
      if (const int pid = absl::GetFlag(FLAGS_pid); pid != 0) {
        resident_mib_.push_back(ResidentKiB(pid) / 1024);
        memory = absl::StrCat(", server RSS ", resident_mib_.back(), " MiB");
      }
      std::printf("%5.0f s: %lld responses, %lld errors, %lld wrong%s\n",
                  absl::ToDoubleSeconds(absl::Now() - start),
                  static_cast<long long>(totals_.responses), static_cast<long long>(totals_.errors),
                  static_cast<long long>(totals_.wrong), memory.c_str());
      std::fflush(stdout);
    }
  }

  std::vector<std::unique_ptr<Case>> cases_;
  absl::Time end_;
  Totals totals_;
  std::vector<int64_t> resident_mib_;  // written by the reporter
  std::atomic<int> complaints_{0};
  std::atomic<bool> stop_reporting_{false};
};

}  // namespace
}  // namespace norm::test

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  norm::test::Soak soak;
  return soak.Run();
}
