#include "element_count.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace norm::client {

absl::StatusOr<int64_t> CountElements(const std::vector<int64_t>& shape, DType dtype) {
  if (shape.empty())
    return absl::InvalidArgumentError("rank 0 is not a tensor: at least one dimension is needed");
  bool empty = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0)
      return absl::InvalidArgumentError(absl::StrCat("dimension ", i, " is negative: ", shape[i]));
    empty = empty || shape[i] == 0;
  }
  if (empty) return 0;
  const int64_t limit = INT64_MAX / static_cast<int64_t>(DTypeSize(dtype));
  int64_t count = 1;
  for (int64_t dimension : shape) {
    if (count > limit / dimension) {
      return absl::InvalidArgumentError(absl::StrCat("shape [", absl::StrJoin(shape, ","),
                                                     "] has more bytes than 63 bits can count"));
    }
    count *= dimension;
  }
  return count;
}

}  // namespace norm::client
