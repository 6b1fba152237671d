#include "client/normctl/manifest.h"

#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/tensor_file/regular_file.h"
#include "nlohmann/json.hpp"

namespace norm::normctl {
namespace {

using Json = nlohmann::json;

const std::map<std::string, Op> kOps = {
    {"rms_norm", Op::kRmsNorm}, {"layer_norm", Op::kLayerNorm}, {"batch_norm", Op::kBatchNorm}};
const std::map<std::string, Direction> kDirections = {{"forward", Direction::kForward},
                                                      {"backward", Direction::kBackward}};
const std::map<std::string, BatchNormMode> kModes = {{"training", BatchNormMode::kTraining},
                                                     {"inference", BatchNormMode::kInference}};
const std::map<std::string, BatchNormLayout> kLayouts = {{"nchw", BatchNormLayout::kNchw},
                                                         {"nhwc", BatchNormLayout::kNhwc}};
const std::map<std::string, ToleranceScale> kScales = {{"value", ToleranceScale::kValue},
                                                       {"element", ToleranceScale::kElement},
                                                       {"row", ToleranceScale::kRow},
                                                       {"channel", ToleranceScale::kChannel},
                                                       {"scale", ToleranceScale::kTensor}};

/// Reads the fields of one JSON object; the first error is kept, and at the end a field that
/// nothing read is one.
class ObjectReader {
 public:
  ObjectReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) Fail("is not an object");
  }

  bool Has(const char* field) const { return status_.ok() && json_.contains(field); }

  std::string String(const char* field) {
    const Json* value = Field(field);
    if (value == nullptr) return "";
    if (!value->is_string()) Fail(absl::StrCat(field, " is not a string"));
    return status_.ok() ? value->get<std::string>() : "";
  }

  double Number(const char* field) {
    const Json* value = Field(field);
    if (value == nullptr) return 0;
    if (!value->is_number()) Fail(absl::StrCat(field, " is not a number"));
    return status_.ok() ? value->get<double>() : 0;
  }

  int64_t Integer(const char* field) {
    const Json* value = Field(field);
    if (value == nullptr) return 0;
    if (!value->is_number_integer()) Fail(absl::StrCat(field, " is not an integer"));
    return status_.ok() ? value->get<int64_t>() : 0;
  }

  template <typename T>
  T OneOf(const char* field, const std::map<std::string, T>& names) {
    const std::string name = String(field);
    const auto found = names.find(name);
    if (found != names.end()) return found->second;
    if (status_.ok()) Fail(absl::StrCat(field, " is '", name, "'"));
    return names.begin()->second;
  }

  /// A field that must be an object.
  const Json& Object(const char* field) {
    static const Json kEmpty = Json::object();
    const Json* value = Field(field);
    if (value == nullptr) return kEmpty;
    if (!value->is_object()) Fail(absl::StrCat(field, " is not an object"));
    return status_.ok() ? *value : kEmpty;
  }

  void Fail(const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": ", what));
  }

  absl::Status Finish() {
    if (!status_.ok()) return status_;
    for (const auto& item : json_.items()) {
      if (!read_.contains(item.key())) Fail(absl::StrCat("unknown field '", item.key(), "'"));
    }
    return status_;
  }

 private:
  const Json* Field(const char* field) {
    if (!status_.ok()) return nullptr;
    const auto found = json_.find(field);
    if (found == json_.end()) {
      Fail(absl::StrCat(field, " is missing"));
      return nullptr;
    }
    read_.insert(field);
    return &*found;
  }

  const Json& json_;
  const std::string where_;
  std::set<std::string> read_;
  absl::Status status_;
};

absl::Status ParseOptions(const Json& json, const std::string& where, OpOptions* options) {
  ObjectReader reader(json, absl::StrCat(where, ", options"));
  if (reader.Has("eps")) options->eps = reader.Number("eps");
  if (reader.Has("weight_offset")) options->weight_offset = reader.Number("weight_offset");
  if (reader.Has("normalized_dims"))
    options->normalized_dims = static_cast<int>(reader.Integer("normalized_dims"));
  if (reader.Has("mode")) options->mode = reader.OneOf("mode", kModes);
  if (reader.Has("layout")) options->layout = reader.OneOf("layout", kLayouts);
  if (reader.Has("momentum")) options->momentum = reader.Number("momentum");
  if (reader.Has("num_batches_tracked"))
    options->num_batches_tracked = reader.Integer("num_batches_tracked");
  return reader.Finish();
}

absl::Status ParseOutput(const Json& json, const std::string& where, const std::string& folder,
                         ExpectedOutput* output) {
  ObjectReader reader(json, where);
  output->golden = absl::StrCat(folder, reader.String("golden"));
  ObjectReader tolerance(reader.Object("tolerance"), absl::StrCat(where, ", tolerance"));
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  output->tolerance.relative = tolerance.Number("relative");
  output->tolerance.scale = tolerance.OneOf("of", kScales);
  if (tolerance.Has("ulps")) output->tolerance.ulps = tolerance.Number("ulps");
  if (tolerance.Has("scale")) output->scale = absl::StrCat(folder, tolerance.String("scale"));
  if (!(output->tolerance.relative >= 0) || !(output->tolerance.ulps >= 0))
    tolerance.Fail("is negative");
  return tolerance.Finish();
}

absl::StatusOr<VerifyCase> ParseCase(const Json& json, size_t index, const std::string& folder) {
  VerifyCase result;
  ObjectReader reader(json, absl::StrCat("case ", index));
  result.name = reader.String("name");
  const std::string where = absl::StrCat("case '", result.name, "'");
  result.options.op = reader.OneOf("op", kOps);
  result.options.direction = reader.OneOf("direction", kDirections);
  const Json& options = reader.Object("options");
  const Json& inputs = reader.Object("inputs");
  const Json& outputs = reader.Object("outputs");
  if (outputs.empty()) reader.Fail("no outputs to compare");
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  if (absl::Status status = ParseOptions(options, where, &result.options); !status.ok())
    return status;
  ObjectReader references(inputs, absl::StrCat(where, ", inputs"));
  for (const auto& item : inputs.items()) {
    result.inputs[item.key()] = absl::StrCat(folder, references.String(item.key().c_str()));
  }
  if (absl::Status status = references.Finish(); !status.ok()) return status;
  for (const auto& item : outputs.items()) {
    absl::Status status = ParseOutput(item.value(), absl::StrCat(where, ", output ", item.key()),
                                      folder, &result.outputs[item.key()]);
    if (!status.ok()) return status;
  }
  result.options.return_statistics =
      result.outputs.contains("mean") || result.outputs.contains("rstd");
  result.options.gradients.weight = result.outputs.contains("dweight");
  result.options.gradients.bias = result.outputs.contains("dbias");
  return result;
}

}  // namespace

absl::StatusOr<std::vector<VerifyCase>> ReadManifest(const std::string& path) {
  absl::StatusOr<client::RegularFile> file = client::RegularFile::Open(path);
  if (!file.ok()) return file.status();
  std::string text(static_cast<size_t>(file->size_bytes()), '\0');
  absl::Status read =
      file->ReadAt(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size()));
  if (!read.ok()) return read;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
  };
  if (json.is_discarded()) return refuse("is not JSON");
  if (!json.is_object() || !json.contains("cases") || !json["cases"].is_array())
    return refuse("has no list of cases");
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  std::vector<VerifyCase> cases;
  for (const Json& entry : json["cases"]) {
    absl::StatusOr<VerifyCase> parsed = ParseCase(entry, cases.size(), folder);
    if (!parsed.ok()) return refuse(parsed.status().message());
    cases.push_back(*std::move(parsed));
  }
  if (cases.empty()) return refuse("has no cases");
  return cases;
}

}  // namespace norm::normctl
