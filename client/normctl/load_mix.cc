#include "client/normctl/load_mix.h"

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "client/tensor_file/regular_file.h"

namespace norm::normctl {
namespace {

constexpr size_t kMaxCases = 256;
constexpr int64_t kMaxFileBytes = 1 << 20;

using Field = std::function<absl::Status(absl::string_view value, LoadCase* load_case)>;

/// A field whose values are a few words.
template <typename Value>
Field OneOf(std::vector<std::pair<std::string, Value>> words, Value LoadCase::*member) {
  return [words = std::move(words), member](absl::string_view value, LoadCase* load_case) {
    for (const auto& [word, meaning] : words) {
      if (word == value) {
        load_case->*member = meaning;
        return absl::OkStatus();
      }
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "'", value, "' is none of ",
        absl::StrJoin(words, ", ",
                      [](std::string* out, const auto& word) { *out += word.first; })));
  };
}

Field Count(int64_t LoadCase::*member) {
  return [member](absl::string_view value, LoadCase* load_case) {
    if (absl::SimpleAtoi(value, &(load_case->*member))) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("'", value, "' is no whole number"));
  };
}

absl::Status SetShape(absl::string_view value, LoadCase* load_case) {
  absl::StatusOr<std::vector<int64_t>> shape = ParseShape(value);
  if (!shape.ok()) {
    return absl::InvalidArgumentError(absl::StripPrefix(shape.status().message(), "shape: "));
  }
  load_case->shape = *std::move(shape);
  return absl::OkStatus();
}

template <typename Value>
std::vector<std::pair<std::string, Value>> DTypeWords() {
  std::vector<std::pair<std::string, Value>> words;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64})
    words.emplace_back(DTypeName(dtype), dtype);
  return words;
}

std::map<std::string, Field> Fields() {
  const std::vector<std::pair<std::string, bool>> tensor = {{"none", false}, {"inline", true}};
  return {
      {"op", OneOf<Op>({{OpName(Op::kRmsNorm), Op::kRmsNorm},
                        {OpName(Op::kLayerNorm), Op::kLayerNorm},
                        {OpName(Op::kBatchNorm), Op::kBatchNorm}},
                       &LoadCase::op)},
      {"direction",
       OneOf<Direction>({{"forward", Direction::kForward}, {"backward", Direction::kBackward}},
                        &LoadCase::direction)},
      {"shape", SetShape},
      {"dtype", OneOf<DType>(DTypeWords<DType>(), &LoadCase::dtype)},
      {"priority",
       OneOf<client::Priority>(
           {{PriorityName(client::Priority::kInteractive), client::Priority::kInteractive},
            {PriorityName(client::Priority::kBulk), client::Priority::kBulk}},
           &LoadCase::priority)},
      {"share", Count(&LoadCase::share)},
      {"sets", Count(&LoadCase::sets)},
      {"weight", OneOf<bool>(tensor, &LoadCase::weight)},
      {"bias", OneOf<bool>(tensor, &LoadCase::bias)},
      {"residual", OneOf<bool>(tensor, &LoadCase::residual)},
      {"running", OneOf<bool>(tensor, &LoadCase::running)},
      {"weight_dtype",
       OneOf<std::optional<DType>>(DTypeWords<std::optional<DType>>(), &LoadCase::weight_dtype)},
      {"mode", OneOf<BatchNormMode>({{"training", BatchNormMode::kTraining},
                                     {"inference", BatchNormMode::kInference}},
                                    &LoadCase::mode)},
      {"layout",
       OneOf<BatchNormLayout>({{"nchw", BatchNormLayout::kNchw}, {"nhwc", BatchNormLayout::kNhwc}},
                              &LoadCase::layout)},
  };
}

absl::Status Wrong(absl::string_view field, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", problem));
}

absl::StatusOr<LoadCase> ParseCase(absl::string_view line,
                                   const std::map<std::string, Field>& fields) {
  LoadCase load_case;
  std::map<std::string, std::string> given;
  for (const absl::string_view word :
       absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    const auto& [name, value] = parts;
    if (word.find('=') == absl::string_view::npos || name.empty())
      return Wrong(word, "is not name=value");
    const auto field = fields.find(name);
    if (field == fields.end()) {
      return Wrong(
          name, absl::StrCat("is none of the fields ",
                             absl::StrJoin(fields, ", ", [](std::string* out, const auto& known) {
                               *out += known.first;
                             })));
    }
    if (const auto [before, first] = given.emplace(name, value); !first)
      return Wrong(name,
                   absl::StrCat("is given twice, as '", before->second, "' and '", value, "'"));
    if (absl::Status status = field->second(value, &load_case); !status.ok())
      return Wrong(name, status.message());
  }
  for (const char* name : {"op", "shape", "dtype"}) {
    if (!given.contains(name)) return Wrong(name, "is required and missing");
  }
  for (const char* name : {"mode", "layout"}) {
    if (given.contains(name) && load_case.op != Op::kBatchNorm)
      return Wrong(name, absl::StrCat("is for batch_norm, not for ", OpName(load_case.op)));
  }
  if (absl::Status status = Validate(load_case); !status.ok()) return status;
  return load_case;
}

}  // namespace

absl::StatusOr<std::vector<LoadCase>> ParseLoadMix(absl::string_view name, absl::string_view text) {
  const std::map<std::string, Field> fields = Fields();
  std::vector<LoadCase> cases;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<LoadCase> load_case = ParseCase(line, fields);
    if (!load_case.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ":", number, ": ", load_case.status().message()));
    }
    if (cases.size() == kMaxCases) {
      return absl::InvalidArgumentError(absl::StrCat(name, ":", number, ": is case ", kMaxCases + 1,
                                                     ", over the limit of ", kMaxCases));
    }
    cases.push_back(*std::move(load_case));
  }
  if (cases.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": has no cases"));
  return cases;
}

absl::StatusOr<std::vector<LoadCase>> ReadLoadMix(const std::string& path) {
  const absl::StatusOr<client::RegularFile> file = client::RegularFile::Open(path);
  if (!file.ok()) return file.status();
  if (file->size_bytes() > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", file->size_bytes(),
                                                   " bytes are over the limit of ", kMaxFileBytes));
  }
  std::string text(static_cast<size_t>(file->size_bytes()), '\0');
  if (absl::Status status =
          file->ReadAt(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size()));
      !status.ok()) {
    return status;
  }
  return ParseLoadMix(path, text);
}

}  // namespace norm::normctl
