// What a case must do at least: bytes, floating-point operations, and the time that follows from them.
#pragma once

#include <cstdint>
#include <optional>

#include "bench/suite.h"

namespace norm::bench {

/// Bytes of every input once and of every output once: parameters and statistics included,
/// workspace not.
struct Traffic {
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;

  int64_t total_bytes() const { return read_bytes + written_bytes; }
};
Traffic TrafficOf(const BenchCase& bench_case);

/// Additions and multiplications per element of x as the formulas of the op need them (a fused
/// multiply-add is two); per-row and per-channel work, roots among it, is left out.
double FlopsPerElement(const BenchCase& bench_case);

/// What a device can do, measured or from its data sheet.
struct DeviceCeilings {
  double copy_gbs = 0.0;   // a large device-to-device copy, reads plus writes
  double launch_us = 0.0;  // an empty kernel of one block, timed as any other
  double f32_tflops = 0.0;
};

/// The predicted least time: one launch, and the larger of moving the bytes at copy speed and the
/// arithmetic at peak.
double FloorUs(const BenchCase& bench_case, const DeviceCeilings& ceilings);

/// Lanes of f32 arithmetic in one multiprocessor; 128 for capabilities not known here.
int F32LanesPerSm(int compute_major, int compute_minor);
double F32PeakTflops(int sm_count, int f32_lanes_per_sm, double clock_ghz);

/// FLOPs per byte at which peak arithmetic takes as long as memory at `gbs`.
double RidgePoint(double f32_tflops, double gbs);

/// The share of a same-size copy's speed that this project asks of a case on an H200; none where it
/// asks for nothing.
std::optional<double> Bar(const BenchCase& bench_case);

}  // namespace norm::bench
