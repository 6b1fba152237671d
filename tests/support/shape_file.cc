#include "tests/support/shape_file.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace norm::testing {
namespace {

[[noreturn]] void Fail(const std::string& path, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", path.c_str(), line, what.c_str());
  std::exit(1);
}

}  // namespace

ShapeList LoadShapes(const std::string& name) {
  const std::string path = std::string(NORM_TEST_SHAPES_DIR) + "/" + name + ".txt";
  std::ifstream file(path);
  if (!file) {
    Fail(path, 0, "cannot be read");
  }
  ShapeList shapes;
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    std::istringstream words(text.substr(0, text.find('#')));
    std::string kind;
    if (!(words >> kind)) {
      continue;
    }
    int64_t a = 0;
    int64_t b = 0;
    int64_t c = 0;
    std::string rest;
    if (kind == "row" && words >> a >> b && !(words >> rest)) {
      shapes.rows.push_back({a, b});
    } else if (kind == "batch" && words >> a >> b >> c && !(words >> rest)) {
      shapes.batches.push_back({a, b, c});
    } else {
      Fail(path, line,
           "expected 'row <rows> <hidden_size>' or 'batch <batch> <channels> <spatial>'");
    }
  }
  return shapes;
}

}  // namespace norm::testing
