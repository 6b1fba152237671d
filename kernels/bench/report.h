// The result file: one JSON object whose rows are measurements, of this library and of others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/suite.h"
#include "norm/kernels/result.h"

namespace norm::bench {

/// One measurement in the words of the file.
struct ResultRow {
  std::string op;         // rms_norm, layer_norm, batch_norm
  std::string direction;  // forward, backward, inference
  std::string dtype;
  std::string weight_dtype;
  std::vector<int64_t> shape;
  std::string layout;   // "", nchw, nhwc, nc
  std::string variant;  // "", residual, fp8, ...
  std::string impl;     // normd, torch, torch_compile, cudnn, ...
  double us = 0.0;
  int64_t bytes = 0;
  double share_of_copy = 0.0;
  double share_of_same_size_copy = 0.0;

  friend bool operator==(const ResultRow&, const ResultRow&) = default;
};

/// A row of `bench_case` with everything but the measurement.
ResultRow DescribeCase(const BenchCase& bench_case, const std::string& impl);

struct Report {
  std::string device;
  std::string date;  // UTC, YYYY-MM-DD
  std::string commit;
  std::string source_hash;  // of the kernels' sources: kernels/bench/source_hash.sh
  double copy_gbs = 0.0;
  std::vector<ResultRow> rows;

  friend bool operator==(const Report&, const Report&) = default;
};

/// Adds the row, in place of one that measured the same thing with the same implementation.
void Merge(Report& report, const ResultRow& row);

/// One row a line.
std::string ToJson(const Report& report);
/// kInvalidArgument names what is missing or of the wrong type.
Result<Report> ReportFromJson(const std::string& text);

Result<Report> ReadReport(const std::string& path);
/// Replaces the file as a whole: a reader, or a run that is killed, never leaves half a file.
Status WriteFileWhole(const std::string& path, const std::string& text);

/// Today in UTC.
std::string Today();

}  // namespace norm::bench
