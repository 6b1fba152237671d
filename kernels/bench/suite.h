// What normbench measures: the cases of a suite file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "norm/kernels/dtype.h"
#include "norm/kernels/op_types.h"
#include "norm/kernels/result.h"

namespace norm::bench {

/// kInference is BatchNorm's forward with running statistics.
enum class BenchDirection : uint8_t { kForward, kBackward, kInference };

/// kRows is [rows, hidden_size]; the others are BatchNorm's.
enum class BenchLayout : uint8_t { kRows, kNchw, kNhwc, kNc };

/// What is computed besides the plain op.
enum class Variant : uint8_t {
  kPlain,
  kResidual,  // forward: adds a residual and returns the sum; backward: adds the sum's gradient
  kFp8,       // f8e4m3 output with a given scale
  kFp8Row,    // f8e4m3 output with a scale per row, returned
  kInt8,      // int8 output with a scale per row, returned
  kGraph,     // the plain forward, many times in one captured graph, caches warm
};

/// One measurement.
struct BenchCase {
  Op op = Op::kRmsNorm;
  BenchDirection direction = BenchDirection::kForward;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;
  std::vector<int64_t>
      shape;  // [rows, hidden_size], or as the layout says with C second (nchw, nc)
  BenchLayout layout = BenchLayout::kRows;
  Variant variant = Variant::kPlain;

  friend bool operator==(const BenchCase&, const BenchCase&) = default;
};

/// The spellings of the result file. Plain and kRows are empty strings.
const char* DirectionText(BenchDirection direction);
const char* LayoutText(BenchLayout layout);
const char* VariantText(Variant variant);
/// "65536x256"; BatchNorm shapes are written [N, C, spatial...] in every layout.
std::string ShapeText(const std::vector<int64_t>& shape);
/// "batch_norm/forward/bf16/64x64x112x112/nchw": what --filter looks into.
std::string CaseName(const BenchCase& bench_case);

/// Elements of x.
int64_t ElementCount(const BenchCase& bench_case);

/// The cases of a suite text, in its order. Lines, '#' starts a comment:
///
///   rows <rows>x<hidden_size> key=value,value...
///   channels <N>x<C>[x<spatial>...] layouts=... key=value,value...
///
/// Keys: ops, directions, dtypes, weights (one value; default: the dtype of x), variants (with
/// "plain"), layouts. A malformed line is kInvalidArgument with `name` and the line's number.
Result<std::vector<BenchCase>> ParseSuite(const std::string& text, const std::string& name);

/// As ParseSuite, from a file.
Result<std::vector<BenchCase>> LoadSuite(const std::string& path);

/// Which cases to run: names that contain every one of `parts`, of one of `dtypes` (none: all).
struct CaseFilter {
  std::vector<std::string> parts;
  std::vector<std::string> dtypes;
};
std::vector<BenchCase> Select(const std::vector<BenchCase>& cases, const CaseFilter& filter);

}  // namespace norm::bench
