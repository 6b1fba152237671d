// The parameter grid of the row-norm suites: shape lists times dtype pairs.
#pragma once

#include <string>
#include <vector>

#include "tests/support/row_norm_case.h"
#include "tests/support/shape_file.h"

namespace norm::testing {

struct RowSweepPoint {
  RowShape shape;
  DTypePair dtypes;
};

/// Shapes past this many elements run with fewer dtypes and options: they probe indexing, not
/// arithmetic.
inline constexpr int64_t kLargeElements = 300000;

/// Every shape of the ci and regressions lists with every dtype pair (large ones with f32 and
/// bf16).
std::vector<RowSweepPoint> RowSweep();

/// "F32Rows7Hidden1023".
std::string RowSweepName(const RowSweepPoint& point);

inline bool IsLarge(const RowShape& shape) {
  return shape.rows * shape.hidden_size > kLargeElements;
}

}  // namespace norm::testing
