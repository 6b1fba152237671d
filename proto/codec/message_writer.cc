#include "proto/codec/message_writer.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/codec/wire_format.h"

namespace norm::wire {
namespace {

constexpr uint64_t kMaxMessageBytes = std::numeric_limits<int32_t>::max();

// Message bytes with payloads in place: text, then the payload of that index (-1: none), and so on.
struct Piece {
  std::string text;
  int64_t payload = -1;
};

struct Expansion {
  std::vector<Piece> pieces;
  uint64_t size_bytes = 0;

  std::string* text() {
    if (pieces.empty() || pieces.back().payload >= 0) pieces.emplace_back();
    return &pieces.back().text;
  }
};

bool ReadVarint(absl::string_view* bytes, uint64_t* value) {
  *value = 0;
  for (int i = 0; i < kMaxVarintBytes && i < static_cast<int>(bytes->size()); ++i) {
    const auto byte = static_cast<uint8_t>((*bytes)[i]);
    *value |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
    if ((byte & 0x80) == 0) {
      bytes->remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

// Re-encodes protobuf's own output, so malformed bytes mean a defect here, not bad input.
absl::Status Expand(const google::protobuf::Descriptor* message, absl::string_view bytes,
                    const std::vector<grpc::Slice>& payloads, Expansion* out) {
  absl::Status broken = absl::InternalError("protobuf output could not be walked");
  const auto append = [out](absl::string_view text) {
    out->text()->append(text.data(), text.size());
    out->size_bytes += text.size();
  };
  const auto append_varint = [&append](uint64_t value) {
    std::string text;
    AppendVarint(value, &text);
    append(text);
  };
  while (!bytes.empty()) {
    const absl::string_view field_start = bytes;
    uint64_t tag = 0;
    uint64_t length = 0;
    if (!ReadVarint(&bytes, &tag)) return broken;
    switch (static_cast<WireType>(tag & 7)) {
      case WireType::kVarint:
        if (!ReadVarint(&bytes, &length)) return broken;
        length = 0;
        break;
      case WireType::kFixed64:
        length = 8;
        break;
      case WireType::kFixed32:
        length = 4;
        break;
      case WireType::kLengthDelimited:
        if (!ReadVarint(&bytes, &length)) return broken;
        break;
      default:
        return broken;
    }
    if (length > bytes.size()) return broken;
    const absl::string_view content = bytes.substr(0, length);
    bytes.remove_prefix(length);
    const absl::string_view field =
        field_start.substr(0, static_cast<size_t>(bytes.data() - field_start.data()));

    const google::protobuf::Descriptor* child = nullptr;
    const FieldKind kind = static_cast<WireType>(tag & 7) == WireType::kLengthDelimited
                               ? KindOfField(message, static_cast<uint32_t>(tag >> 3), &child)
                               : FieldKind::kOpaque;
    switch (kind) {
      case FieldKind::kOpaque:
        append(field);
        break;
      case FieldKind::kTensorData: {
        const int64_t index = MarkerIndex(std::string(content));
        if (index < 0 || index >= static_cast<int64_t>(payloads.size())) {
          return absl::InternalError("a tensor has data that was not attached");
        }
        const uint64_t size = payloads[static_cast<size_t>(index)].size();
        append_varint(tag);
        append_varint(size);
        out->text();
        out->pieces.back().payload = index;
        out->size_bytes += size;
        break;
      }
      case FieldKind::kMessage: {
        Expansion inner;
        if (absl::Status status = Expand(child, content, payloads, &inner); !status.ok()) {
          return status;
        }
        append_varint(tag);
        append_varint(inner.size_bytes);
        out->size_bytes += inner.size_bytes;
        for (Piece& piece : inner.pieces) {
          out->text()->append(piece.text);
          if (piece.payload >= 0) out->pieces.back().payload = piece.payload;
        }
        break;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

void MessageWriter::Attach(std::string* field, grpc::Slice bytes) {
  field->clear();
  if (bytes.size() == 0) return;
  AppendMarker(static_cast<uint32_t>(payloads_.size()), field);
  payloads_.push_back(std::move(bytes));
}

void MessageWriter::Attach(std::string* field, absl::Span<const std::byte> bytes,
                           std::shared_ptr<const void> owner) {
  using Owner = std::shared_ptr<const void>;
  field->clear();
  if (bytes.empty()) return;
  Attach(field,
         grpc::Slice(
             const_cast<std::byte*>(bytes.data()), bytes.size(),
             [](void* held) { delete static_cast<Owner*>(held); }, new Owner(std::move(owner))));
}

grpc::Slice MessageWriter::Detach(std::string* field) {
  const int64_t index = MarkerIndex(*field);
  field->clear();
  if (index < 0 || index >= static_cast<int64_t>(payloads_.size())) return grpc::Slice();
  return std::exchange(payloads_[static_cast<size_t>(index)], grpc::Slice());
}

absl::StatusOr<grpc::ByteBuffer> MessageWriter::Build(const google::protobuf::Message& message) {
  std::string header;
  if (!message.SerializeToString(&header)) {
    return absl::InternalError(
        absl::StrCat("protobuf refused to serialize ", message.GetTypeName()));
  }
  Expansion expansion;
  if (absl::Status status = Expand(message.GetDescriptor(), header, payloads_, &expansion);
      !status.ok()) {
    return status;
  }
  if (expansion.size_bytes > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("message of ", expansion.size_bytes,
                                                   " bytes > protobuf's limit ", kMaxMessageBytes));
  }
  std::vector<grpc::Slice> slices;
  slices.reserve(2 * expansion.pieces.size());
  for (const Piece& piece : expansion.pieces) {
    if (!piece.text.empty()) slices.emplace_back(piece.text);
    if (piece.payload >= 0) slices.push_back(payloads_[static_cast<size_t>(piece.payload)]);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace norm::wire
