// norm_call_bench: one encoded message sent to any unary method of any gRPC server, in the closed loop of
// `normctl bench` over the connections of norm::client. So servers of other protocols are measured by the
// same client, which encodes and decodes nothing meanwhile. Prints JSON.
#include <malloc.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "channel_pool.h"
#include "client/normctl/load_connection.h"
#include "client/normctl/load_outcome.h"
#include "client/normctl/load_phase.h"
#include "client/normctl/load_progress.h"
#include "client/normctl/mix_sequence.h"
#include "client/tensor_file/regular_file.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "nlohmann/json.hpp"
#include "unary_call.h"

ABSL_FLAG(std::string, server, "127.0.0.1:8470", "Address, host:port.");
ABSL_FLAG(std::string, method, "/norm.v1.NormalizationService/Normalize",
          "Unary method, /package.Service/Method.");
ABSL_FLAG(std::string, message, "", "File with the encoded request message.");
ABSL_FLAG(std::string, save, "", "File for the encoded response to the first call.");
ABSL_FLAG(int64_t, response_bytes, 0, "Fewest bytes of a response that counts as one.");
ABSL_FLAG(int32_t, connections, 1, "TCP connections.");
ABSL_FLAG(int32_t, in_flight, 1, "Calls in flight on each connection.");
ABSL_FLAG(double, warm_up, 1, "Seconds before anything is counted.");
ABSL_FLAG(double, duration, 4, "Seconds in which calls begin.");

namespace norm::test {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

/// One TCP connection. Threads: any.
class CallConnection final : public normctl::LoadConnection {
 public:
  CallConnection(const std::string& server, std::string method, const grpc::ByteBuffer& request,
                 int64_t response_bytes)
      // Only files of certificates could be wrong.
      : channels_(client::ChannelPool::Create({{server}}, client::ClientOptions()).value()),
        method_(std::move(method)),
        request_(request),
        response_bytes_(response_bytes) {}

  absl::StatusOr<normctl::LoadReply> Send(size_t /*case_index*/, int64_t /*ordinal*/,
                                          absl::Duration timeout) override {
    const absl::StatusOr<grpc::ByteBuffer> response = Call(timeout);
    if (!response.ok()) return response.status();
    const auto received = static_cast<int64_t>(response->Length());
    if (received < response_bytes_)
      return absl::DataLossError(
          absl::StrCat("response: at least ", response_bytes_, " bytes expected, got ", received));
    return normctl::LoadReply{.bytes_sent = static_cast<int64_t>(request_.Length()),
                              .bytes_received = received,
                              .message_bytes = received};
  }

  absl::StatusOr<grpc::ByteBuffer> Call(absl::Duration timeout) {
    grpc::ByteBuffer response;
    const absl::Status status = client::TryOnce(channels_->Next(), *threads_,
                                                {.method = method_,
                                                 .request = request_,
                                                 .deadline = absl::Now() + timeout,
                                                 .progress = nullptr},
                                                &response)
                                    .status;
    if (!status.ok()) return status;
    return response;
  }

 private:
  const std::shared_ptr<client::AnswerThreads> threads_ = client::AnswerThreads::OfProcess();
  const std::unique_ptr<client::ChannelPool> channels_;
  const std::string method_;
  const grpc::ByteBuffer request_;
  const int64_t response_bytes_;
};

std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::round<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

absl::StatusOr<grpc::ByteBuffer> ReadMessage(const std::string& path) {
  const absl::StatusOr<client::RegularFile> file = client::RegularFile::Open(path);
  if (!file.ok()) return file.status();
  std::vector<std::byte> bytes(static_cast<size_t>(file->size_bytes()));
  if (absl::Status status = file->ReadAt(0, absl::MakeSpan(bytes)); !status.ok()) return status;
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status Save(const grpc::ByteBuffer& message, const std::string& path) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return absl::InternalError("response: cannot be read");
  std::vector<client::FilePiece> parts;
  parts.reserve(slices.size());
  for (const grpc::Slice& slice : slices)
    parts.emplace_back(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(slice.begin()), slice.size()));
  return client::WriteFile(path, parts);
}

nlohmann::json ToJson(const normctl::LoadOutcome& outcome) {
  const auto microseconds = [](std::chrono::nanoseconds time) {
    return static_cast<double>(time.count()) / 1e3;
  };
  nlohmann::json latency = nullptr;
  if (const std::optional<normctl::LatencySummary>& summary = outcome.all.latency)
    latency = {{"mean", microseconds(summary->mean)},
               {"p50", microseconds(summary->p50)},
               {"p90", microseconds(summary->p90)},
               {"p99", microseconds(summary->p99)}};
  return {{"completed", outcome.all.counts.completed},
          {"failed", outcome.all.counts.failed()},
          {"first_error", std::string(outcome.first_error.message())},
          {"measured_seconds", outcome.measured_seconds},
          {"requests_per_second", outcome.requests_per_second()},
          {"gb_per_second", outcome.gigabytes_per_second()},
          {"latency_us", latency}};
}

/// Every connection is open before calls are counted.
absl::Status Run() {
  const absl::StatusOr<grpc::ByteBuffer> request = ReadMessage(absl::GetFlag(FLAGS_message));
  if (!request.ok()) return request.status();
  std::vector<std::unique_ptr<normctl::LoadConnection>> connections;
  for (int i = 0; i < absl::GetFlag(FLAGS_connections); ++i) {
    auto connection =
        std::make_unique<CallConnection>(absl::GetFlag(FLAGS_server), absl::GetFlag(FLAGS_method),
                                         *request, absl::GetFlag(FLAGS_response_bytes));
    const absl::StatusOr<grpc::ByteBuffer> response = connection->Call(kTimeout);
    if (!response.ok()) return response.status();
    if (i == 0 && !absl::GetFlag(FLAGS_save).empty()) {
      if (absl::Status status = Save(*response, absl::GetFlag(FLAGS_save)); !status.ok())
        return status;
    }
    connections.push_back(std::move(connection));
  }
  const normctl::MixSequence sequence({1});
  normctl::LoadProgress unseen;
  absl::StatusOr<normctl::LoadSamples> samples =
      normctl::RunPhase({.in_flight = absl::GetFlag(FLAGS_in_flight),
                         .warm_up = Seconds(absl::GetFlag(FLAGS_warm_up)),
                         .duration = Seconds(absl::GetFlag(FLAGS_duration)),
                         .timeout = kTimeout},
                        {.connections = connections, .sequence = sequence, .progress = unseen});
  if (!samples.ok()) return samples.status();
  const normctl::LoadOutcome outcome =
      normctl::Summarize(*std::move(samples), normctl::SampleStages::kAbsent);
  std::printf("%s\n", ToJson(outcome).dump(1).c_str());
  if (outcome.all.counts.completed > 0) return absl::OkStatus();
  return outcome.first_error.ok()
             ? absl::DeadlineExceededError(
                   "no call began within --duration: those before were not answered in time")
             : outcome.first_error;
}

}  // namespace
}  // namespace norm::test

int main(int argc, char** argv) {
  ::mallopt(M_ARENA_MAX, 4);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_TOP_PAD, 1 << 30);
  absl::ParseCommandLine(argc, argv);
  if (absl::Status status = norm::test::Run(); !status.ok()) {
    std::fprintf(stderr, "norm_call_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
