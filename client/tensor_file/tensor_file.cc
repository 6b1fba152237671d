#include "client/tensor_file/tensor_file.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/tensor_file/npy.h"

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

absl::Status TensorOutputs::Add(const std::string& reference, const std::string& result_name,
                                const Tensor& tensor) {
  absl::StatusOr<Reference> parsed = Parse(reference);
  if (!parsed.ok()) return parsed.status();
  if (absl::EndsWith(parsed->path, kNpy)) {
    if (!npy_.emplace(parsed->path, tensor).second) {
      return absl::InvalidArgumentError(absl::StrCat(reference, " is named for two results"));
    }
    return absl::OkStatus();
  }
  const std::string name = parsed->tensor.empty() ? result_name : parsed->tensor;
  std::vector<NamedTensor>& tensors = safetensors_[parsed->path];
  for (const NamedTensor& other : tensors) {
    if (other.name == name) {
      return absl::InvalidArgumentError(
          absl::StrCat(parsed->path, ":", name, " is named for two results"));
    }
  }
  tensors.push_back(NamedTensor{name, tensor});
  return absl::OkStatus();
}

absl::Status TensorOutputs::Write() const {
  for (const auto& [path, tensor] : npy_) {
    if (absl::Status status = WriteNpy(path, tensor); !status.ok()) return status;
  }
  for (const auto& [path, tensors] : safetensors_) {
    if (absl::Status status = WriteSafetensors(path, tensors); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace norm::client
