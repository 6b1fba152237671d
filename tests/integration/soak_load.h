// Clients of norm_soak: mixed requests whose every response is checked.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "tests/integration/checked_request.h"

namespace norm::test {

struct SoakOptions {
  std::string server;
  int requests = 96;             // distinct ones
  int64_t max_elements = 32768;  // of x
  uint64_t seed = 1;
  int streams_percent = 25;      // of clients: those use a stream with eight requests in flight
  int calls_per_connection = 0;  // then a client opens another one; 0: it keeps its first
  /// UNAVAILABLE with a pushback is an answer, counted as refused; else it is an error.
  bool refusals_allowed = false;
  /// A refused client waits as long as it is told to.
  bool obeys_pushback = true;
};

/// What became of the requests of one phase.
struct SoakTotals {
  std::atomic<int64_t> responses{0};
  std::atomic<int64_t> stream_responses{0};  // of them
  std::atomic<int64_t> refused{0};
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> errors{0};
  std::atomic<int64_t> wrong{0};
  std::atomic<int64_t> bits_differ{0};
  std::atomic<int64_t> bytes{0};

  bool good() const { return responses > 0 && errors == 0 && wrong == 0 && bits_differ == 0; }
};

/// The first response to each request is checked against the float64 oracle, every other one against
/// the first, bit for bit.
class SoakLoad {
 public:
  explicit SoakLoad(const SoakOptions& options);

  /// So many clients, a thread each, one request at a time or a stream; until `end`. At most
  /// `in_flight` requests at a time, divided between calls and streams as the clients would divide
  /// them: whoever has none waits for a place.
  void Run(int clients, absl::Time end, SoakTotals& totals, int in_flight = kNoLimit);
  static constexpr int kNoLimit = std::numeric_limits<int>::max();

 private:
  /// A request, its oracle, and the bytes of its first response.
  struct Case {
    Case(uint64_t seed, int64_t max_elements) : request(seed, max_elements) {}

    CheckedRequest request;
    std::mutex mutex;                                // of storing `first`
    std::atomic<const std::string*> first{nullptr};  // serialized without timing
    std::string storage;
  };
  class Client;
  class Places;

  template <typename Response>
  void Check(Case& one, Response response, SoakTotals& totals);
  /// The first few problems, so that a broken server does not fill a disk.
  void Complain(absl::string_view text);

  const SoakOptions options_;
  std::vector<std::unique_ptr<Case>> cases_;
  std::atomic<int> complaints_{0};
};

}  // namespace norm::test
