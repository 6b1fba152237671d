// Shape lists of tests/shapes: one shape per line, '#' starts a comment.
//
//   row <rows> <hidden_size>
//   batch <batch> <channels> <spatial>
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace norm::testing {

struct RowShape {
  int64_t rows;
  int64_t hidden_size;
};

struct ChannelExtent {
  int64_t batch;
  int64_t channels;
  int64_t spatial;
};

struct ShapeList {
  std::vector<RowShape> rows;
  std::vector<ChannelExtent> batches;
};

/// Shapes of "<name>.txt" in the shapes folder. A missing file or a malformed line ends the process
/// with a message that names file and line: a test list must not shrink unnoticed.
ShapeList LoadShapes(const std::string& name);

}  // namespace norm::testing
