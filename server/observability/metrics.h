// Everything the server measures about itself. Recording takes no lock and waits for nobody: fixed
// arrays of atomic integers over closed label sets, in shards that threads are dealt out to, added
// up only when scraped (prometheus-cpp's own histograms take a mutex per observation).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "norm/kernels/dtype.h"
#include "norm/kernels/op_types.h"
#include "server/observability/serving_state.h"

namespace norm::server {

enum class Stage : uint8_t { kDecode, kQueue, kCopyIn, kKernel, kCopyOut, kEncode, kSend };
inline constexpr int kStageCount = 7;
/// "decode", "queue", "copy_in", "kernel", "copy_out", "encode", "send".
const char* StageName(Stage stage);

/// Why a request was turned away: before it was queued, but for kDisplaced.
enum class RejectReason : uint8_t {
  kQueueFull,
  kByteBudget,
  kTooLarge,
  kDraining,
  kNoDevice,
  kInvalid,
  kDisplaced,         // out of a full queue, by a connection with less than its part
  kDeadline,          // would have waited beyond its deadline
  kUnsentBytes,       // its connection does not read the responses it has
  kUnauthenticated,   // of any service: nobody knows who calls
  kPermissionDenied,  // of any service: the caller is known, and not let in
};
inline constexpr int kRejectReasonCount = 11;

/// How tensors reach the server. Shared memory and CUDA IPC will join.
enum class TransportKind : uint8_t { kGrpc };
inline constexpr int kTransportKindCount = 1;

/// What an error of the CUDA runtime was about. The last four poison the context: the device is lost
/// to this process ("sticky").
enum class CudaErrorKind : uint8_t {
  kOutOfMemory,  // an allocation was refused
  kRefused,      // a call was refused
  kMemoryFault,  // a kernel touched what it may not
  kKernelFault,  // a kernel trapped, hung or failed to launch
  kHardware,     // memory, link or the card itself
  kContextLost,  // anything else that ends the context
};
inline constexpr int kCudaErrorKindCount = 6;
constexpr bool IsSticky(CudaErrorKind kind) { return kind >= CudaErrorKind::kMemoryFault; }

/// What one launch did; recorded once per batch by the executor.
struct ExecutionRecord {
  Op op;
  Direction direction;
  DType dtype;
  int device_index = 0;           // into the names given to the constructor
  const char* close_reason = "";  // one of the names given to the constructor
  int64_t requests = 0;
  int64_t rows = 0;
  int64_t kernel_bytes = 0;  // each input once plus each output once
  int64_t input_bytes = 0;   // to the device, with the padding between tensors
  int64_t output_bytes = 0;  // from the device, likewise
  absl::Duration kernel_time;
};

/// Of memory that is set aside.
struct MemoryUse {
  int64_t used_bytes = 0;
  int64_t free_bytes = 0;
};

/// What a device may take, for gauges that usage is compared with.
struct DeviceLimits {
  int slots = 0;
  int64_t pinned_pool_bytes = 0;
  int64_t device_pool_bytes = 0;  // 0: the device has no such pool, and no gauges of it
};

/// What NVIDIA's management library says of a card at one moment; absent what it does not say.
struct GpuReading {
  std::optional<double> utilization;  // share of the last sample period with a kernel, 0 to 1
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;
  std::optional<double> memory_used_bytes;
  std::optional<double> memory_total_bytes;
  std::optional<double> temperature_celsius;
};

/// Label values of build_info.
struct BuildInfo {
  std::string version;
  std::string compiler;
  std::string cuda_architectures;  // as CMake names them, with spaces; empty for a CPU-only build
};

struct MetricsOptions {
  /// Label values of `device`, e.g. {"cpu"}.
  std::vector<std::string> device_names;
  /// Label values of batch_close_total; at most 8.
  std::vector<std::string> close_reasons;
  BuildInfo build;
  /// Without it what calls record is dropped, and only gauges move: to see what recording costs.
  bool recording = true;
  /// Between two readings of a card.
  absl::Duration gpu_interval = absl::Seconds(1);
};

/// Thread-safe. Labels are closed sets: op, direction, dtype, code, device, stage, reason,
/// transport, way, kind.
class Metrics {
 public:
  explicit Metrics(MetricsOptions options);
  Metrics(std::vector<std::string> device_names, std::vector<std::string> close_reasons);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  /// One request ended with `code`, `latency` after its message was complete. Requests too broken
  /// to tell op or dtype are counted by RecordMalformed instead.
  void RecordRequest(Op op, Direction direction, DType dtype, absl::StatusCode code,
                     absl::Duration latency);
  void RecordMalformed(Direction direction);
  /// What the status page tells of a call that failed at `now`: nothing secret may be in the message.
  /// Takes a lock.
  void RecordError(absl::Time now, absl::string_view method, const absl::Status& status);
  void RecordStage(Stage stage, absl::Duration time);
  void RecordExecution(const ExecutionRecord& record);
  void RecordRejected(RejectReason reason);
  void RecordDeadlineExceeded(Stage stage);
  void RecordCancelled(Stage stage);
  /// Tensor bytes that came in with requests and went out with responses.
  void RecordTransport(TransportKind transport, int64_t bytes_in, int64_t bytes_out);
  void RecordCudaError(CudaErrorKind kind);
  void AddSlotBusy(int device_index, absl::Duration time);
  void SetDeviceCopyBandwidth(int device_index, double bytes_per_second);
  void SetDeviceLimits(int device_index, const DeviceLimits& limits);

  /// Calls `read` again and again on a thread of its own, from now until StopGpuReaders or the
  /// destructor; it may be slow or hang: scrapes see the last reading and its age. `uuid`: of the
  /// card of that device.
  void SetGpuReader(int device_index, std::string uuid, std::function<GpuReading()> read);
  /// Ends those threads. The uuids of the cards whose `read` has not returned after `patience`: while
  /// it does not, destroying this object hangs, and the process can only be ended without that.
  std::vector<std::string> StopGpuReaders(absl::Duration patience);
  /// How many connections are open: called by each scrape, several at once; must not block.
  void SetConnectionsReader(std::function<int64_t()> read);
  /// The same for page-locked memory that messages are received in.
  void SetReceiveMemoryReader(std::function<MemoryUse()> read);

  // Gauges, set by their owners.
  void SetQueue(int64_t requests, int64_t in_flight_requests, int64_t in_flight_bytes);
  void SetAdmissionLimits(int64_t requests, int64_t bytes);
  void SetPinnedPool(int device_index, int64_t used_bytes, int64_t free_bytes);
  void SetDevicePool(int device_index, int64_t used_bytes, int64_t free_bytes);
  void SetServingState(ServingState state);
  void SetDraining(bool draining);
  void AddStreams(int64_t delta);
  /// Responses that wait for their readers.
  void SetUnsent(int64_t bytes);
  /// A call was broken off since its reader did not take a response in time.
  void RecordWriteTimeout();
  /// Records of the span log that were written to it, and that were dropped.
  void RecordSpans(int64_t written, int64_t dropped);

  struct StageTotal {
    uint64_t requests = 0;
    double seconds = 0;
  };
  /// Totals for ServerService.GetStatistics.
  struct Totals {
    uint64_t requests_ok = 0;
    uint64_t requests_failed = 0;
    uint64_t executions = 0;
    uint64_t rows = 0;
    uint64_t bytes_in = 0;
    uint64_t bytes_out = 0;
    StageTotal encode;
    StageTotal send;
  };
  Totals totals() const;

  /// For MetricsEndpoint (server/observability/metrics_endpoint.h), which registers it with
  /// prometheus-cpp.
  class Impl;
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace norm::server
