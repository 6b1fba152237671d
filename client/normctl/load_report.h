// What `normctl bench` prints for one load.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "client/normctl/load_options.h"
#include "client/normctl/load_run.h"

namespace norm::normctl {

struct ServerIdentity {
  std::string version;
  std::vector<std::string> devices;
};

struct Spread {
  double median = 0;  // of an even number the mean of the two in the middle
  double min = 0;
  double max = 0;
};
/// Of one value at least.
Spread SpreadOf(std::vector<double> values);

/// Requests beside their echoes, in one run.
struct EchoComparison {
  double requests_per_second = 0;   // requests/s over echoes/s
  std::chrono::nanoseconds p50{0};  // latency less that of the echo
  std::chrono::nanoseconds p99{0};
  std::optional<Spread> rounds;  // requests/s over echoes/s of each round, where there are some
};
/// Absent without an echo, or where either completed nothing.
std::optional<EchoComparison> CompareWithEcho(const LoadResult& result);

/// Requests beside a flood, over the same requests alone.
struct FloodComparison {
  double p50 = 0;
  double p99 = 0;
};
/// Absent without a flood, or where the requests completed nothing.
std::optional<FloodComparison> CompareWithAlone(const LoadResult& result);

/// What is sent and how, but for the rate: "rms_norm forward 4x4096 bf16, 4 connections x 8 in
/// flight, unary, 10 s after 1 s; normd 0.1.0 on cpu".
std::string DescribeLoad(const LoadOptions& options, const ServerIdentity& server);

/// The table, with a last newline.
std::string LoadTable(const LoadOptions& options, const ServerIdentity& server,
                      const LoadResult& result);

}  // namespace norm::normctl
