#include "bench/suite.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

namespace norm::bench {
namespace {

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  std::string part;
  while (std::getline(stream, part, separator)) parts.push_back(part);
  return parts;
}

std::optional<std::vector<int64_t>> ParseShape(const std::string& text) {
  std::vector<int64_t> shape;
  for (const std::string& word : Split(text, 'x')) {
    int64_t extent = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), extent);
    if (error != std::errc() || end != word.data() + word.size() || extent < 1) return std::nullopt;
    shape.push_back(extent);
  }
  return shape;
}

template <typename Value>
using Spellings = std::vector<std::pair<std::string, Value>>;

const Spellings<Op> kOps = {
    {"rms_norm", Op::kRmsNorm}, {"layer_norm", Op::kLayerNorm}, {"batch_norm", Op::kBatchNorm}};
const Spellings<BenchDirection> kDirections = {{"forward", BenchDirection::kForward},
                                               {"backward", BenchDirection::kBackward},
                                               {"inference", BenchDirection::kInference}};
const Spellings<DType> kDTypes = {
    {"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}, {"f64", DType::kF64}};
const Spellings<Variant> kVariants = {{"plain", Variant::kPlain}, {"residual", Variant::kResidual},
                                      {"fp8", Variant::kFp8},     {"fp8_row", Variant::kFp8Row},
                                      {"int8", Variant::kInt8},   {"graph", Variant::kGraph}};
const Spellings<BenchLayout> kLayouts = {
    {"nchw", BenchLayout::kNchw}, {"nhwc", BenchLayout::kNhwc}, {"nc", BenchLayout::kNc}};

template <typename Value>
std::optional<std::vector<Value>> ParseList(const std::string& text,
                                            const Spellings<Value>& spellings) {
  std::vector<Value> values;
  for (const std::string& word : Split(text, ',')) {
    const auto found = std::find_if(spellings.begin(), spellings.end(),
                                    [&](const auto& entry) { return entry.first == word; });
    if (found == spellings.end()) return std::nullopt;
    values.push_back(found->second);
  }
  return values;
}

/// One line with its defaults.
struct SuiteLine {
  std::vector<int64_t> shape;
  std::vector<Op> ops;
  std::vector<BenchDirection> directions;
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  std::optional<DType> weight_dtype;
  std::vector<Variant> variants = {Variant::kPlain};
  std::vector<BenchLayout> layouts;
};

/// Empty when the setting was taken, else what is wrong with it.
std::string ApplySetting(const std::string& word, SuiteLine& line) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return "expected key=value, got '" + word + "'";
  const std::string key = word.substr(0, equals);
  const std::string value = word.substr(equals + 1);
  const auto take = [&](const auto& spellings, auto& target) {
    auto list = ParseList(value, spellings);
    if (!list || list->empty()) return "unknown value in '" + word + "'";
    target = *std::move(list);
    return std::string();
  };
  if (key == "ops") return take(kOps, line.ops);
  if (key == "directions") return take(kDirections, line.directions);
  if (key == "dtypes") return take(kDTypes, line.dtypes);
  if (key == "variants") return take(kVariants, line.variants);
  if (key == "layouts") return take(kLayouts, line.layouts);
  if (key == "weights") {
    std::vector<DType> weights;
    std::string fault = take(kDTypes, weights);
    if (fault.empty() && weights.size() != 1) fault = "'weights' takes one dtype";
    if (fault.empty()) line.weight_dtype = weights.front();
    return fault;
  }
  return "unknown key '" + key + "'";
}

/// Empty, or why the line names a combination that no op has.
std::string Contradiction(const SuiteLine& line, bool rows) {
  for (const Op op : line.ops) {
    if ((op == Op::kBatchNorm) == rows) return std::string(OpName(op)) + " does not fit this shape";
  }
  if (rows && line.shape.size() != 2) return "expected <rows>x<hidden_size>";
  if (!rows && line.shape.size() < 2) return "expected <N>x<C>[x<spatial>...]";
  for (const BenchLayout layout : line.layouts) {
    if (rows) return "rows have no layout";
    if ((layout == BenchLayout::kNc) != (line.shape.size() == 2)) {
      return std::string("layout ") + LayoutText(layout) + " does not fit " + ShapeText(line.shape);
    }
  }
  if (!rows && line.layouts.empty()) return "channels need layouts=";
  for (const Variant variant : line.variants) {
    if (!rows && variant != Variant::kPlain) return "channels have only plain cases";
  }
  for (const BenchDirection direction : line.directions) {
    if (rows && direction == BenchDirection::kInference) return "rows have no inference";
    for (const Variant variant : line.variants) {
      if (direction == BenchDirection::kBackward && variant != Variant::kPlain &&
          variant != Variant::kResidual) {
        return std::string(VariantText(variant)) + " is forward only";
      }
    }
  }
  for (const DType dtype : line.dtypes) {
    if (line.weight_dtype && !IsSupportedWeightDType(dtype, *line.weight_dtype)) {
      return std::string("weights in ") + DTypeName(*line.weight_dtype) + " with " +
             DTypeName(dtype);
    }
  }
  return "";
}

void Expand(const SuiteLine& line, std::vector<BenchCase>& cases) {
  const std::vector<BenchLayout> rows_only = {BenchLayout::kRows};
  for (const Op op : line.ops) {
    for (const BenchLayout layout : line.layouts.empty() ? rows_only : line.layouts) {
      for (const BenchDirection direction : line.directions) {
        for (const Variant variant : line.variants) {
          for (const DType dtype : line.dtypes) {
            cases.push_back({op, direction, dtype, line.weight_dtype.value_or(dtype), line.shape,
                             layout, variant});
          }
        }
      }
    }
  }
}

}  // namespace

const char* DirectionText(BenchDirection direction) {
  return kDirections[static_cast<size_t>(direction)].first.c_str();
}

const char* LayoutText(BenchLayout layout) {
  return layout == BenchLayout::kRows ? ""
                                      : kLayouts[static_cast<size_t>(layout) - 1].first.c_str();
}

const char* VariantText(Variant variant) {
  return variant == Variant::kPlain ? "" : kVariants[static_cast<size_t>(variant)].first.c_str();
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) {
    if (!text.empty()) text += 'x';
    text += std::to_string(extent);
  }
  return text;
}

std::string CaseName(const BenchCase& bench_case) {
  std::string name = std::string(OpName(bench_case.op)) + "/" +
                     DirectionText(bench_case.direction) + "/" + DTypeName(bench_case.dtype) + "/" +
                     ShapeText(bench_case.shape);
  if (bench_case.weight_dtype != bench_case.dtype) {
    name += std::string("/weight_") + DTypeName(bench_case.weight_dtype);
  }
  if (bench_case.layout != BenchLayout::kRows)
    name += std::string("/") + LayoutText(bench_case.layout);
  if (bench_case.variant != Variant::kPlain)
    name += std::string("/") + VariantText(bench_case.variant);
  return name;
}

int64_t ElementCount(const BenchCase& bench_case) {
  int64_t count = 1;
  for (const int64_t extent : bench_case.shape) count *= extent;
  return count;
}

Result<std::vector<BenchCase>> ParseSuite(const std::string& text, const std::string& name) {
  std::vector<BenchCase> cases;
  std::istringstream lines(text);
  std::string raw;
  for (int number = 1; std::getline(lines, raw); ++number) {
    std::istringstream words(raw.substr(0, raw.find('#')));
    std::string kind;
    if (!(words >> kind)) continue;
    const auto refuse = [&](const std::string& fault) {
      return Status(StatusCode::kInvalidArgument,
                    name + ":" + std::to_string(number) + ": " + fault);
    };
    const bool rows = kind == "rows";
    if (!rows && kind != "channels")
      return refuse("expected 'rows' or 'channels', got '" + kind + "'");
    SuiteLine line;
    std::string word;
    const auto shape = words >> word ? ParseShape(word) : std::nullopt;
    if (!shape) return refuse("expected a shape such as 8192x4096");
    line.shape = *shape;
    if (rows) {
      line.ops = {Op::kRmsNorm, Op::kLayerNorm};
      line.directions = {BenchDirection::kForward, BenchDirection::kBackward};
    } else {
      line.ops = {Op::kBatchNorm};
      line.directions = {BenchDirection::kForward, BenchDirection::kBackward,
                         BenchDirection::kInference};
    }
    while (words >> word) {
      if (const std::string fault = ApplySetting(word, line); !fault.empty()) return refuse(fault);
    }
    if (const std::string fault = Contradiction(line, rows); !fault.empty()) return refuse(fault);
    Expand(line, cases);
  }
  if (cases.empty()) return Status(StatusCode::kInvalidArgument, name + ": no cases");
  return cases;
}

Result<std::vector<BenchCase>> LoadSuite(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Status(StatusCode::kInvalidArgument, path + ": cannot be read");
  std::ostringstream text;
  text << file.rdbuf();
  return ParseSuite(text.str(), path);
}

std::vector<BenchCase> Select(const std::vector<BenchCase>& cases, const CaseFilter& filter) {
  std::vector<BenchCase> selected;
  for (const BenchCase& bench_case : cases) {
    const std::string name = CaseName(bench_case);
    const bool named = std::all_of(filter.parts.begin(), filter.parts.end(), [&](const auto& part) {
      return name.find(part) != std::string::npos;
    });
    const bool typed =
        filter.dtypes.empty() || std::find(filter.dtypes.begin(), filter.dtypes.end(),
                                           DTypeName(bench_case.dtype)) != filter.dtypes.end();
    if (named && typed) selected.push_back(bench_case);
  }
  return selected;
}

}  // namespace norm::bench
