#include "tests/support/row_norm_sweep.h"

namespace norm::testing {
namespace {

bool Contains(const std::vector<RowSweepPoint>& points, const RowShape& shape) {
  for (const RowSweepPoint& point : points) {
    if (point.shape.rows == shape.rows && point.shape.hidden_size == shape.hidden_size) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<RowSweepPoint> RowSweep() {
  std::vector<RowSweepPoint> points;
  for (const char* list : {"ci", "regressions"}) {
    for (const RowShape& shape : LoadShapes(list).rows) {
      if (Contains(points, shape)) {
        continue;
      }
      for (const DTypePair& dtypes : kDTypePairs) {
        const bool is_probe = dtypes.weight_dtype == dtypes.dtype &&
                              (dtypes.dtype == DType::kF32 || dtypes.dtype == DType::kBF16);
        if (!IsLarge(shape) || is_probe) {
          points.push_back({shape, dtypes});
        }
      }
    }
  }
  return points;
}

std::string RowSweepName(const RowSweepPoint& point) {
  return DTypePairName(point.dtypes) + "Rows" + std::to_string(point.shape.rows) + "Hidden" +
         std::to_string(point.shape.hidden_size);
}

}  // namespace norm::testing
