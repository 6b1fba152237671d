#include "client/tensor_file/npy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/tensor_file/file_tensor.h"
#include "client/tensor_file/regular_file.h"

namespace norm::client {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr int64_t kMaxHeaderBytes = 64 << 10;
constexpr size_t kHeaderAlignment = 64;

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

/// A parser for the one Python literal that numpy writes: a dict of a string, a bool and a tuple of
/// integers.
class HeaderParser {
 public:
  explicit HeaderParser(absl::string_view text) : text_(text) {}

  std::optional<Header> Parse() {
    Header header;
    std::set<std::string> seen;
    if (!Take('{')) return std::nullopt;
    while (!Take('}')) {
      std::string key;
      if (!String(&key) || !Take(':') || !seen.insert(key).second) return std::nullopt;
      const bool parsed = key == "descr"           ? String(&header.descr)
                          : key == "fortran_order" ? Bool(&header.fortran_order)
                          : key == "shape"         ? Tuple(&header.shape)
                                                   : false;
      if (!parsed) return std::nullopt;
      if (!Take(',')) {
        if (!Take('}')) return std::nullopt;
        break;
      }
    }
    SkipSpace();
    if (!text_.empty() || seen.size() != 3) return std::nullopt;
    return header;
  }

 private:
  void SkipSpace() { text_ = absl::StripLeadingAsciiWhitespace(text_); }

  bool Take(char symbol) {
    SkipSpace();
    if (text_.empty() || text_.front() != symbol) return false;
    text_.remove_prefix(1);
    return true;
  }

  bool Take(absl::string_view word) {
    SkipSpace();
    if (text_.substr(0, word.size()) != word) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  bool String(std::string* value) {
    SkipSpace();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) return false;
    const size_t end = text_.find(text_.front(), 1);
    if (end == absl::string_view::npos) return false;
    *value = std::string(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return true;
  }

  bool Bool(bool* value) {
    *value = Take("True");
    return *value || Take("False");
  }

  bool Tuple(std::vector<int64_t>* values) {
    if (!Take('(')) return false;
    while (!Take(')')) {
      SkipSpace();
      const size_t digits = std::min(text_.find_first_not_of("0123456789"), text_.size());
      int64_t value = 0;
      if (digits == 0 || !absl::SimpleAtoi(text_.substr(0, digits), &value)) return false;
      text_.remove_prefix(digits);
      Take('L');  // Python 2 wrote long integers so
      values->push_back(value);
      if (!Take(',')) return Take(')');
    }
    return true;
  }

  absl::string_view text_;
};

struct ElementType {
  DType dtype = DType::kF32;
  bool swapped = false;
};

std::optional<ElementType> ParseDescr(const std::string& descr) {
  if (descr == "bfloat16" || descr == "<V2" || descr == "|V2")
    return ElementType{DType::kBF16, false};
  if (descr.size() != 3 || (descr[0] != '<' && descr[0] != '=' && descr[0] != '>'))
    return std::nullopt;
  const bool swapped = descr[0] == '>';
  const absl::string_view kind = absl::string_view(descr).substr(1);
  if (kind == "f2") return ElementType{DType::kF16, swapped};
  if (kind == "f4") return ElementType{DType::kF32, swapped};
  if (kind == "f8") return ElementType{DType::kF64, swapped};
  return std::nullopt;
}

const char* Descr(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "<f4";
    case DType::kF16:
      return "<f2";
    case DType::kBF16:
      return "<V2";
    case DType::kF64:
      return "<f8";
  }
  return "";
}

void SwapBytes(absl::Span<std::byte> bytes, size_t element_size) {
  for (size_t i = 0; i + element_size <= bytes.size(); i += element_size) {
    std::reverse(bytes.begin() + static_cast<ptrdiff_t>(i),
                 bytes.begin() + static_cast<ptrdiff_t>(i + element_size));
  }
}

/// The header's text and where the data begins.
struct RawHeader {
  std::string text;
  int64_t data_offset = 0;
};

absl::StatusOr<RawHeader> ReadHeader(const RegularFile& file) {
  const auto broken = [&](absl::string_view why) {
    return absl::DataLossError(absl::StrCat(file.path(), ": ", why));
  };
  std::byte preamble[12] = {};
  const int64_t available = std::min<int64_t>(file.size_bytes(), 12);
  if (available < 10) return broken("too short for an .npy file");
  absl::Status status = file.ReadAt(0, absl::MakeSpan(preamble, static_cast<size_t>(available)));
  if (!status.ok()) return status;
  if (std::memcmp(preamble, kMagic.data(), kMagic.size()) != 0)
    return broken("not an .npy file (wrong magic)");
  const int major = static_cast<int>(preamble[6]);
  if (major < 1 || major > 3)
    return broken(absl::StrCat("format version ", major, " is not 1, 2 or 3"));
  const int64_t begin = major == 1 ? 10 : 12;
  if (available < begin) return broken("too short for an .npy file");
  int64_t length = 0;
  for (int64_t i = begin - 1; i >= 8; --i) length = length << 8 | static_cast<int64_t>(preamble[i]);
  if (length > kMaxHeaderBytes)
    return broken(absl::StrCat("header of ", length, " bytes > ", kMaxHeaderBytes));
  if (length > file.size_bytes() - begin) return broken("the file ends within its header");
  RawHeader header{std::string(static_cast<size_t>(length), '\0'), begin + length};
  status = file.ReadAt(
      begin, absl::MakeSpan(reinterpret_cast<std::byte*>(header.text.data()), header.text.size()));
  if (!status.ok()) return status;
  return header;
}

}  // namespace

absl::StatusOr<Tensor> ReadNpy(const std::string& path) {
  absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<RawHeader> raw = ReadHeader(*file);
  if (!raw.ok()) return raw.status();
  const std::optional<Header> header = HeaderParser(raw->text).Parse();
  if (!header.has_value()) {
    return absl::DataLossError(
        absl::StrCat(path, ": header is not the dict of a plain numpy array"));
  }
  const std::optional<ElementType> element = ParseDescr(header->descr);
  if (!element.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": dtype '", header->descr, "' is not f2, f4, f8 or bf16 (<V2)"));
  }
  // The size is compared before anything is allocated: dimensions of a hostile header cost nothing.
  const int64_t data_bytes = file->size_bytes() - raw->data_offset;
  if (header->shape.empty())
    return absl::InvalidArgumentError(absl::StrCat(path, ": a scalar (rank 0) is not a tensor"));
  absl::int128 expected = static_cast<int64_t>(DTypeSize(element->dtype));
  for (int64_t dimension : header->shape) {
    expected *= dimension;
    if (expected > INT64_MAX)
      return absl::DataLossError(absl::StrCat(path, ": shape has more bytes than 63 bits count"));
  }
  if (expected != data_bytes) {
    return absl::DataLossError(absl::StrCat(
        path, ": ", data_bytes, " bytes of data where shape (", absl::StrJoin(header->shape, ", "),
        ") of ", DTypeName(element->dtype), " needs ", static_cast<int64_t>(expected)));
  }
  absl::StatusOr<Tensor> stored =
      TensorFromFile(*file, raw->data_offset, element->dtype, header->shape);
  if (!stored.ok()) return stored;
  if (element->swapped) SwapBytes(stored->mutable_bytes(), DTypeSize(element->dtype));
  if (!header->fortran_order || stored->elements() == 0) return stored;
  std::vector<int64_t> strides;
  int64_t stride = 1;
  for (int64_t dimension : header->shape) {
    strides.push_back(stride);
    stride *= dimension;
  }
  return Tensor::CopyOf(
      TensorView::Strided(element->dtype, stored->bytes(), 0, header->shape, std::move(strides)));
}

absl::Status WriteNpy(const std::string& path, const Tensor& tensor) {
  std::string text = absl::StrCat(
      "{'descr': '", Descr(tensor.dtype()), "', 'fortran_order': False, 'shape': (",
      absl::StrJoin(tensor.shape(), ", "), tensor.shape().size() == 1 ? ",), }" : "), }");
  const size_t unpadded = kMagic.size() + 4 + text.size() + 1;
  text.append((kHeaderAlignment - unpadded % kHeaderAlignment) % kHeaderAlignment, ' ');
  text.push_back('\n');
  if (text.size() > UINT16_MAX)
    return absl::InvalidArgumentError(absl::StrCat(path, ": too many dimensions"));
  std::string header(kMagic);
  header.append({1, 0, static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)});
  header.append(text);
  return WriteFile(
      path, {absl::MakeConstSpan(reinterpret_cast<const std::byte*>(header.data()), header.size()),
             tensor.bytes()});
}

}  // namespace norm::client
