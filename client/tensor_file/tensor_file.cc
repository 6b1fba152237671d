#include "client/tensor_file/tensor_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/tensor_file/npy.h"
#include "client/tensor_file/regular_file.h"

namespace norm::client {
namespace {

constexpr char kNpy[] = ".npy";
constexpr char kSafetensors[] = ".safetensors";

struct Reference {
  std::string path;
  std::string tensor;  // of a safetensors file; empty when not named
};

absl::StatusOr<Reference> Parse(const std::string& text) {
  const size_t named = text.find(absl::StrCat(kSafetensors, ":"));
  if (named != std::string::npos) {
    const size_t colon = named + sizeof(kSafetensors) - 1;
    if (colon + 1 == text.size())
      return absl::InvalidArgumentError(absl::StrCat(text, ": no tensor name after ':'"));
    return Reference{text.substr(0, colon), text.substr(colon + 1)};
  }
  if (absl::EndsWith(text, kSafetensors) || absl::EndsWith(text, kNpy)) return Reference{text, ""};
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is neither FILE.npy nor FILE.safetensors[:TENSOR]"));
}

}  // namespace

absl::Status CheckReference(const std::string& reference) { return Parse(reference).status(); }

absl::StatusOr<Tensor> ReadTensor(const std::string& reference) {
  absl::StatusOr<Reference> parsed = Parse(reference);
  if (!parsed.ok()) return parsed.status();
  if (absl::EndsWith(parsed->path, kNpy)) return ReadNpy(parsed->path);
  if (!parsed->tensor.empty()) return ReadSafetensors(parsed->path, parsed->tensor);
  absl::StatusOr<std::vector<std::string>> names = ListSafetensors(parsed->path);
  if (!names.ok()) return names.status();
  if (names->size() != 1) {
    names->resize(std::min<size_t>(names->size(), 8));
    return absl::InvalidArgumentError(
        absl::StrCat(parsed->path, " does not hold exactly one tensor: name one, as ", parsed->path,
                     ":NAME (", names->empty() ? "it is empty" : absl::StrJoin(*names, ", "), ")"));
  }
  return ReadSafetensors(parsed->path, names->front());
}

absl::Status TensorOutputs::Reserve(const std::string& reference, const std::string& result_name) {
  absl::StatusOr<Reference> parsed = Parse(reference);
  if (!parsed.ok()) return parsed.status();
  Target target{reference, CanonicalPath(parsed->path), ""};
  if (!absl::EndsWith(parsed->path, kNpy))
    target.tensor = parsed->tensor.empty() ? result_name : parsed->tensor;
  for (const Target& other : targets_) {
    const bool whole_file = other.tensor.empty() || target.tensor.empty();
    if (other.path == target.path && (whole_file || other.tensor == target.tensor)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "two results cannot go to the same place: ", other.reference, " and ", reference));
    }
  }
  targets_.push_back(std::move(target));
  return absl::OkStatus();
}

absl::Status TensorOutputs::Add(const std::string& reference, const std::string& result_name,
                                const Tensor& tensor) {
  if (absl::Status status = Reserve(reference, result_name); !status.ok()) return status;
  const Target& target = targets_.back();
  const std::string path = Parse(reference)->path;
  if (target.tensor.empty()) {
    npy_.emplace(path, tensor);
  } else {
    SafetensorsFile& file =
        safetensors_.try_emplace(target.path, SafetensorsFile{path, {}}).first->second;
    file.tensors.push_back(NamedTensor{target.tensor, tensor});
  }
  return absl::OkStatus();
}

absl::Status TensorOutputs::Write() const {
  for (const auto& [path, tensor] : npy_) {
    if (absl::Status status = WriteNpy(path, tensor); !status.ok()) return status;
  }
  for (const auto& [key, file] : safetensors_) {
    absl::Status status = UpdateSafetensors(file.path, file.tensors);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace norm::client
