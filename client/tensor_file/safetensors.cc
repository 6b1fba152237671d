#include "client/tensor_file/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/tensor_file/file_tensor.h"
#include "client/tensor_file/regular_file.h"
#include "nlohmann/json.hpp"

namespace norm::client {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr absl::string_view kMetadata = "__metadata__";

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

struct Directory {
  std::optional<Json> metadata;
  std::vector<Entry> entries;  // in order of their data
  int64_t data_offset = 0;
};

std::optional<DType> ParseDType(absl::string_view name) {
  if (name == "F32") return DType::kF32;
  if (name == "F16") return DType::kF16;
  if (name == "BF16") return DType::kBF16;
  if (name == "F64") return DType::kF64;
  return std::nullopt;
}

const char* FormatDType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kF64:
      return "F64";
  }
  return "";
}

/// Bytes per element of every dtype that a file may hold, ours or not; 0 for one that this reader
/// has never heard of.
int64_t AnyDTypeSize(absl::string_view name) {
  if (name == "BOOL" || name == "U8" || name == "I8" || name == "F8_E4M3" || name == "F8_E5M2")
    return 1;
  if (name == "U16" || name == "I16" || name == "F16" || name == "BF16") return 2;
  if (name == "U32" || name == "I32" || name == "F32") return 4;
  if (name == "U64" || name == "I64" || name == "F64" || name == "C64") return 8;
  return 0;
}

bool ParseIntegers(const Json& json, std::vector<int64_t>* values) {
  if (!json.is_array()) return false;
  for (const Json& value : json) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) return false;
    values->push_back(value.get<int64_t>());
  }
  return true;
}

/// Parses one entry; returns what is wrong with it, or nothing.
std::optional<std::string> ParseEntry(const Json& json, Entry* entry) {
  if (!json.is_object() || json.size() != 3) return "is not {dtype, shape, data_offsets}";
  const auto dtype = json.find("dtype");
  const auto shape = json.find("shape");
  const auto offsets = json.find("data_offsets");
  if (dtype == json.end() || shape == json.end() || offsets == json.end()) {
    return "is not {dtype, shape, data_offsets}";
  }
  if (!dtype->is_string()) return "has a dtype that is no string";
  entry->dtype = dtype->get<std::string>();
  if (!ParseIntegers(*shape, &entry->shape)) return "has a shape that is no list of sizes";
  std::vector<int64_t> range;
  if (!ParseIntegers(*offsets, &range) || range.size() != 2)
    return "has data_offsets that are not two offsets";
  entry->begin = range[0];
  entry->end = range[1];
  if (entry->begin > entry->end)
    return absl::StrCat("begins at ", entry->begin, " after its end ", entry->end);
  const int64_t element_size = AnyDTypeSize(entry->dtype);
  if (element_size == 0) return std::nullopt;
  absl::int128 expected = element_size;
  for (int64_t dimension : entry->shape) {
    expected *= dimension;
    if (expected > INT64_MAX) return "has a shape of more bytes than 63 bits count";
  }
  if (expected != entry->end - entry->begin) {
    return absl::StrCat("has ", entry->end - entry->begin, " bytes where its shape needs ",
                        static_cast<int64_t>(expected));
  }
  return std::nullopt;
}

/// The header as JSON. The parser keeps the last of two equal names; the format forbids them.
std::optional<Json> ParseHeader(const std::string& text) {
  std::set<std::string> names;
  bool repeated = false;
  const auto note_names = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1) {
      repeated = !names.insert(parsed.get<std::string>()).second || repeated;
    }
    return true;
  };
  Json header = Json::parse(text, note_names, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object() || repeated) return std::nullopt;
  return header;
}

absl::StatusOr<Directory> ReadDirectory(const RegularFile& file) {
  const auto broken = [&](absl::string_view why) {
    return absl::DataLossError(absl::StrCat(file.path(), ": ", why));
  };
  if (file.size_bytes() < kLengthBytes) return broken("too short for a safetensors file");
  std::byte prefix[kLengthBytes] = {};
  absl::Status status = file.ReadAt(0, absl::MakeSpan(prefix));
  if (!status.ok()) return status;
  uint64_t length = 0;
  for (int64_t i = kLengthBytes - 1; i >= 0; --i)
    length = length << 8 | static_cast<uint64_t>(prefix[i]);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return broken(absl::StrCat("header of ", length, " bytes > ", kMaxHeaderBytes));
  }
  Directory directory;
  directory.data_offset = kLengthBytes + static_cast<int64_t>(length);
  if (directory.data_offset > file.size_bytes()) return broken("the file ends within its header");
  std::string text(length, '\0');
  status = file.ReadAt(kLengthBytes,
                       absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size()));
  if (!status.ok()) return status;
  const std::optional<Json> header = ParseHeader(text);
  if (!header.has_value()) return broken("the header is not a JSON object of distinct names");
  for (const auto& item : header->items()) {
    if (item.key() == kMetadata) {
      directory.metadata = item.value();
      continue;
    }
    Entry entry;
    entry.name = item.key();
    if (std::optional<std::string> error = ParseEntry(item.value(), &entry)) {
      return broken(absl::StrCat("tensor '", entry.name, "' ", *error));
    }
    directory.entries.push_back(std::move(entry));
  }
  std::sort(directory.entries.begin(), directory.entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  int64_t end = 0;
  for (const Entry& entry : directory.entries) {
    if (entry.begin != end) {
      return broken(absl::StrCat("tensor '", entry.name, "' begins at ", entry.begin,
                                 ", not where the one before ends (", end, ")"));
    }
    end = entry.end;
  }
  const int64_t data_bytes = file.size_bytes() - directory.data_offset;
  if (end != data_bytes)
    return broken(absl::StrCat("the tensors end at ", end, ", the data at ", data_bytes));
  return directory;
}

/// A tensor to write; the range of `entry` is that of the file it came from.
struct Part {
  Entry entry;
  FilePiece data;
};

Part ToPart(const NamedTensor& named) {
  const absl::Span<const std::byte> bytes = named.tensor.bytes();
  return Part{Entry{named.name, FormatDType(named.tensor.dtype()), named.tensor.shape(), 0,
                    static_cast<int64_t>(bytes.size())},
              bytes};
}

absl::Status Write(const std::string& path, const std::optional<Json>& metadata,
                   std::vector<Part> parts) {
  // Wide elements first, as the format's own writer has it: every tensor is aligned.
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return AnyDTypeSize(a.entry.dtype) > AnyDTypeSize(b.entry.dtype);
  });
  Json header = Json::object();
  std::vector<FilePiece> pieces(1);
  int64_t offset = 0;
  for (const Part& part : parts) {
    const Entry& entry = part.entry;
    if (entry.name == kMetadata || header.contains(entry.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor name '", entry.name, "' is taken"));
    }
    const int64_t end = offset + (entry.end - entry.begin);
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {offset, end}}};
    pieces.push_back(part.data);
    offset = end;
  }
  if (metadata.has_value()) header[std::string(kMetadata)] = *metadata;
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string prefix;
  for (int shift = 0; shift < 64; shift += 8)
    prefix.push_back(static_cast<char>(text.size() >> shift & 0xff));
  prefix.append(text);
  pieces[0] = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(prefix.data()), prefix.size());
  return WriteFile(path, pieces);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListSafetensors(const std::string& path) {
  absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<Directory> directory = ReadDirectory(*file);
  if (!directory.ok()) return directory.status();
  std::vector<std::string> names;
  for (const Entry& entry : directory->entries) names.push_back(entry.name);
  return names;
}

absl::StatusOr<Tensor> ReadSafetensors(const std::string& path, const std::string& name) {
  absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<Directory> directory = ReadDirectory(*file);
  if (!directory.ok()) return directory.status();
  const auto found = std::find_if(directory->entries.begin(), directory->entries.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  if (found == directory->entries.end())
    return absl::NotFoundError(absl::StrCat(path, " has no tensor '", name, "'"));
  const std::optional<DType> dtype = ParseDType(found->dtype);
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": tensor '", name, "' is ", found->dtype,
                                                   ", not F32, F16, BF16 or F64"));
  }
  absl::StatusOr<Tensor> tensor =
      TensorFromFile(*file, directory->data_offset + found->begin, *dtype, found->shape);
  if (!tensor.ok()) {
    return absl::Status(tensor.status().code(),
                        absl::StrCat(path, ": tensor '", name, "': ", tensor.status().message()));
  }
  return tensor;
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::vector<Part> parts;
  parts.reserve(tensors.size());
  for (const NamedTensor& named : tensors) parts.push_back(ToPart(named));
  return Write(path, std::nullopt, std::move(parts));
}

absl::Status UpdateSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return WriteSafetensors(path, tensors);
  absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<Directory> directory = ReadDirectory(*file);
  if (!directory.ok()) {
    return absl::Status(directory.status().code(),
                        absl::StrCat("nothing can be added to a file that is not safetensors: ",
                                     directory.status().message()));
  }
  std::vector<Part> parts;
  for (Entry& entry : directory->entries) {
    const bool replaced =
        std::any_of(tensors.begin(), tensors.end(),
                    [&](const NamedTensor& named) { return named.name == entry.name; });
    if (replaced) continue;
    const FileRange range{&*file, directory->data_offset + entry.begin, entry.end - entry.begin};
    parts.push_back(Part{std::move(entry), range});
  }
  for (const NamedTensor& named : tensors) parts.push_back(ToPart(named));
  return Write(path, directory->metadata, std::move(parts));
}

}  // namespace norm::client
