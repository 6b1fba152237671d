#include "proto/codec/message_writer.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/codec/wire_format.h"

namespace norm::wire {
namespace {

constexpr uint64_t kMaxMessageBytes = std::numeric_limits<int32_t>::max();

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

size_t VarintSize(uint64_t value) {
  size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

/// Puts payloads into protobuf's own output, in the place of their markers. What it cannot walk means
/// a defect here, not bad input.
class Expander {
 public:
  explicit Expander(const std::vector<grpc::Slice>& payloads) : payloads_(payloads) {}

  /// The first pass: the size of the message with its payloads in place, and of those in it.
  absl::Status Measure(const MessageFields* message, absl::string_view bytes, uint64_t* size) {
    while (!bytes.empty()) {
      Field field;
      if (!Next(message, &bytes, &field)) {
        return absl::InternalError("protobuf output could not be walked");
      }
      uint64_t content_bytes = 0;
      switch (field.held.kind) {
        case FieldKind::kOpaque:
          *size += field.whole.size();
          continue;
        case FieldKind::kTensorData: {
          const grpc::Slice* payload = PayloadOf(field.content);
          if (payload == nullptr) {
            return absl::InternalError("a tensor has data that was not attached");
          }
          content_bytes = payload->size();
          break;
        }
        case FieldKind::kMessage: {
          const size_t place = inner_bytes_.size();
          inner_bytes_.push_back(0);
          absl::Status status = Measure(field.held.message, field.content, &content_bytes);
          if (!status.ok()) return status;
          inner_bytes_[place] = content_bytes;
          break;
        }
      }
      *size += VarintSize(field.tag) + VarintSize(content_bytes) + content_bytes;
    }
    return absl::OkStatus();
  }

  /// The second pass, of bytes that the first has walked: a sequence of slices.
  std::vector<grpc::Slice> Write(const MessageFields* message, absl::string_view bytes) {
    slices_.reserve(2 * payloads_.size() + 1);
    text_.reserve(bytes.size() + 2 * kMaxVarintBytes * (inner_bytes_.size() + payloads_.size()));
    WriteFields(message, bytes);
    EndText();
    return std::move(slices_);
  }

 private:
  struct Field {
    uint64_t tag = 0;
    absl::string_view whole;
    absl::string_view content;  // of a length-delimited one
    MessageFields::Field held;
  };

  static bool Next(const MessageFields* message, absl::string_view* bytes, Field* field) {
    const char* const start = bytes->data();
    uint64_t length = 0;
    if (!ReadVarint(bytes, &field->tag)) return false;
    switch (static_cast<WireType>(field->tag & 7)) {
      case WireType::kVarint:
        if (!ReadVarint(bytes, &length)) return false;
        length = 0;
        break;
      case WireType::kFixed64:
        length = 8;
        break;
      case WireType::kFixed32:
        length = 4;
        break;
      case WireType::kLengthDelimited:
        if (!ReadVarint(bytes, &length)) return false;
        if (message != nullptr) field->held = message->at(static_cast<uint32_t>(field->tag >> 3));
        break;
      default:
        return false;
    }
    if (length > bytes->size()) return false;
    field->content = bytes->substr(0, length);
    bytes->remove_prefix(length);
    field->whole = absl::string_view(start, static_cast<size_t>(bytes->data() - start));
    return true;
  }

  /// Null for a marker of none.
  const grpc::Slice* PayloadOf(absl::string_view marker) const {
    const int64_t index = MarkerIndex(marker);
    if (index < 0 || index >= static_cast<int64_t>(payloads_.size())) return nullptr;
    return &payloads_[static_cast<size_t>(index)];
  }

  void WriteFields(const MessageFields* message, absl::string_view bytes) {
    while (!bytes.empty()) {
      Field field;
      Next(message, &bytes, &field);
      if (field.held.kind == FieldKind::kOpaque) {
        text_.append(field.whole.data(), field.whole.size());
        continue;
      }
      AppendVarint(field.tag, &text_);
      if (field.held.kind == FieldKind::kMessage) {
        AppendVarint(inner_bytes_[next_inner_++], &text_);
        WriteFields(field.held.message, field.content);
        continue;
      }
      const grpc::Slice& payload = *PayloadOf(field.content);
      AppendVarint(payload.size(), &text_);
      EndText();
      slices_.push_back(payload);
    }
  }

  void EndText() {
    if (text_.empty()) return;
    slices_.emplace_back(text_.data(), text_.size());
    text_.clear();
  }

  const std::vector<grpc::Slice>& payloads_;
  absl::InlinedVector<uint64_t, 8> inner_bytes_;  // of messages with tensors, in their order
  size_t next_inner_ = 0;
  std::string text_;
  std::vector<grpc::Slice> slices_;
};

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
  const MessageFields* fields = MessageFields::Of(message.GetDescriptor());
  Expander expander(payloads_);
  uint64_t size_bytes = 0;
  if (absl::Status status = expander.Measure(fields, header, &size_bytes); !status.ok()) {
    return status;
  }
  if (size_bytes > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("message of ", size_bytes, " bytes > protobuf's limit ", kMaxMessageBytes));
  }
  const std::vector<grpc::Slice> slices = expander.Write(fields, header);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace norm::wire
