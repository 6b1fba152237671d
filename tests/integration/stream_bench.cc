// norm_stream_bench: one large tensor in rows over one connection, against the unary echo of the
// same bytes in the same run; prints GB/s and the ratio. Sampled rows are checked in f64.
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "norm/client/client.h"

ABSL_FLAG(std::string, server, "127.0.0.1:8470", "Address of normd, host:port.");
ABSL_FLAG(int64_t, mib, 1024, "Size of the tensor, bf16 rows of --hidden.");
ABSL_FLAG(int64_t, hidden, 4096, "Hidden size.");
ABSL_FLAG(std::vector<std::string>, chunks, std::vector<std::string>({"4096/65536"}),
          "KiB of rows in one message / KiB of rows sent and not returned; several are measured in "
          "turn.");
ABSL_FLAG(bool, echo, true, "Measure the echo too.");
ABSL_FLAG(int, rounds, 2, "Echo and streams in turn, this often; the best of each counts.");

namespace norm::client {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);

float FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

/// Largest error of RMSNorm over rows spread evenly, in units of bf16's half step.
double LargestError(const Tensor& x, const ResultTensor& y, int64_t hidden) {
  const int64_t rows = x.elements() / hidden;
  const auto* in = reinterpret_cast<const uint16_t*>(x.bytes().data());
  // Of a result that came in rows.
  const auto* out = reinterpret_cast<const uint16_t*>(y.runs().front().data());
  double largest = 0;
  for (int64_t sample = 0; sample < 257; ++sample) {
    const int64_t row = sample * (rows - 1) / 256;
    double sum = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      sum += std::pow(static_cast<double>(FromBf16(in[row * hidden + i])), 2);
    }
    const double rstd = 1.0 / std::sqrt(sum / static_cast<double>(hidden) + 1e-6);
    for (int64_t i = 0; i < hidden; ++i) {
      const double want = static_cast<double>(FromBf16(in[row * hidden + i])) * rstd;
      const double error = std::abs(want - static_cast<double>(FromBf16(out[row * hidden + i])));
      largest = std::max(largest, error / std::ldexp(1.0, std::ilogb(want) - 8));
    }
  }
  return largest;
}

/// Mild values; a block of them over and over, out of step with the rows.
Tensor MakeInput(int64_t rows, int64_t hidden) {
  Tensor x = *Tensor::Allocate(DType::kBF16, {rows, hidden});
  std::vector<uint16_t> block((size_t{1} << 20) + 77);
  uint64_t state = 1;
  for (uint16_t& element : block) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const float value =
        static_cast<float>(static_cast<int64_t>(state >> 40) - (1 << 23)) / (1 << 22);
    element = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  }
  absl::Span<std::byte> left = x.mutable_bytes();
  while (!left.empty()) {
    const size_t size = std::min(left.size(), 2 * block.size());
    std::memcpy(left.data(), block.data(), size);
    left.remove_prefix(size);
  }
  return x;
}

struct Stream {
  std::string label;
  std::unique_ptr<Client> client;
  absl::Duration best = absl::InfiniteDuration();
};

int Fail(const char* what, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  return 1;
}

absl::StatusOr<Stream> Connect(const std::string& label) {
  const std::pair<std::string, std::string> sizes = absl::StrSplit(label, absl::MaxSplits('/', 1));
  ClientOptions options;
  options.retry.max_attempts = 1;
  options.chunks.above_bytes = 0;
  if (!absl::SimpleAtoi(sizes.first, &options.chunks.chunk_bytes) ||
      !absl::SimpleAtoi(sizes.second, &options.chunks.window_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("--chunks: ", label, " is no pair of numbers"));
  }
  options.chunks.chunk_bytes <<= 10;
  options.chunks.window_bytes <<= 10;
  auto client = Client::Create(absl::GetFlag(FLAGS_server), options);
  if (!client.ok()) return client.status();
  return Stream{label, *std::move(client)};
}

int Run() {
  const int64_t hidden = absl::GetFlag(FLAGS_hidden);
  const int64_t bytes = absl::GetFlag(FLAGS_mib) << 20;
  const Tensor x = MakeInput(bytes / (2 * hidden), hidden);
  const RmsNormRequest request{.x = x.view()};
  const absl::StatusOr<EncodedRequest> message = EncodedRequest::Of(request);
  if (!message.ok()) return Fail("encoding", message.status());
  std::vector<Stream> streams;
  for (const std::string& label : absl::GetFlag(FLAGS_chunks)) {
    absl::StatusOr<Stream> stream = Connect(label);
    if (!stream.ok()) return Fail("client", stream.status());
    streams.push_back(*std::move(stream));
  }
  absl::Duration echo = absl::InfiniteDuration();
  double error = 0;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    if (absl::GetFlag(FLAGS_echo)) {
      const absl::Time start = absl::Now();
      const absl::Status status =
          streams.front().client->Echo(*message, message->size_bytes(), kTimeout);
      if (!status.ok()) return Fail("echo", status);
      const absl::Duration took = absl::Now() - start;
      echo = std::min(echo, took);
      std::printf("round %d  echo %.1f ms\n", round, absl::ToDoubleMilliseconds(took));
    }
    for (Stream& stream : streams) {
      const absl::Time begin = absl::Now();
      const absl::StatusOr<ForwardResult> result = stream.client->RmsNorm(request, kTimeout);
      const absl::Duration took = absl::Now() - begin;
      if (!result.ok()) return Fail("stream", result.status());
      stream.best = std::min(stream.best, took);
      std::printf(
          "round %d  stream %s %.1f ms on %s; sums: queue %.1f copy in %.1f kernels %.1f "
          "copy out %.1f ms\n",
          round, stream.label.c_str(), absl::ToDoubleMilliseconds(took),
          result->timing.device.c_str(), result->timing.queue_us / 1e3,
          result->timing.copy_in_us / 1e3, result->timing.kernel_us / 1e3,
          result->timing.copy_out_us / 1e3);
      if (round == 0) error = std::max(error, LargestError(x, result->y, hidden));
    }
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  std::printf("%.2f GB, largest error %.4f half steps of bf16, client peak %ld MiB\n", gigabytes,
              error, usage.ru_maxrss >> 10);
  const bool echoed = absl::GetFlag(FLAGS_echo);
  if (echoed) {
    std::printf("echo                         %.2f GB/s\n",
                gigabytes / absl::ToDoubleSeconds(echo));
  }
  for (const Stream& stream : streams) {
    std::printf("chunks/window %-14s %.2f GB/s each way", stream.label.c_str(),
                gigabytes / absl::ToDoubleSeconds(stream.best));
    if (echoed) std::printf(", %.2f of the echo", absl::FDivDuration(echo, stream.best));
    std::printf("\n");
  }
  // The rounding of y, and what f32 arithmetic before it can add.
  return error <= 1.001 ? 0 : 1;
}

}  // namespace
}  // namespace norm::client

int main(int argc, char** argv) {
  // As normctl and normd do (server/main.cc).
  ::mallopt(M_ARENA_MAX, 4);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_TOP_PAD, 1 << 30);
  absl::ParseCommandLine(argc, argv);
  return norm::client::Run();
}
