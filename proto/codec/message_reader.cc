#include "proto/codec/message_reader.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/codec/wire_format.h"

namespace norm::wire {
namespace {

absl::Status Malformed(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("request is not a valid protobuf message: ", why));
}

// A position in a sequence of slices, which it reads as one run of bytes.
class SliceCursor {
 public:
  explicit SliceCursor(absl::Span<const grpc::Slice> slices) : slices_(slices) {
    for (const grpc::Slice& slice : slices_) total_ += slice.size();
    SkipEmpty();
  }

  uint64_t position() const { return position_; }
  uint64_t total() const { return total_; }

  bool ReadByte(uint8_t* byte) {
    if (position_ == total_) return false;
    *byte = slices_[index_].begin()[offset_];
    Advance(1);
    return true;
  }

  // False at the end of the bytes and for an encoding of more than 64 bits.
  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int i = 0; i < kMaxVarintBytes; ++i) {
      uint8_t byte = 0;
      if (!ReadByte(&byte)) return false;
      if (i == kMaxVarintBytes - 1 && byte > 1) return false;
      *value |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

  // Calls visit(span) for the runs that make up the next `count` bytes, which must be there.
  template <typename Visit>
  void Take(uint64_t count, Visit visit) {
    while (count > 0) {
      const uint64_t here = std::min<uint64_t>(count, slices_[index_].size() - offset_);
      visit(absl::MakeConstSpan(
          reinterpret_cast<const std::byte*>(slices_[index_].begin()) + offset_, here));
      Advance(here);
      count -= here;
    }
  }

 private:
  void Advance(uint64_t count) {
    position_ += count;
    offset_ += count;
    SkipEmpty();
  }
  void SkipEmpty() {
    while (index_ < slices_.size() && offset_ == slices_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
  }

  absl::Span<const grpc::Slice> slices_;
  size_t index_ = 0;
  uint64_t offset_ = 0;
  uint64_t position_ = 0;
  uint64_t total_ = 0;
};

// Copies a message to `header`, tensor bytes replaced by markers and noted in `payloads`.
class HeaderExtractor {
 public:
  HeaderExtractor(SliceCursor* cursor, std::vector<Payload>* payloads)
      : cursor_(cursor), payloads_(payloads) {}

  absl::Status Extract(const MessageFields* message, uint64_t end, int depth, std::string* header) {
    if (depth > kMaxDepth) return Malformed("messages are nested too deeply");
    while (cursor_->position() < end) {
      uint64_t tag = 0;
      if (!cursor_->ReadVarint(&tag) || tag > UINT32_MAX || (tag >> 3) == 0) {
        return Malformed(absl::StrCat("bad field tag at byte ", cursor_->position()));
      }
      absl::Status status;
      AppendVarint(tag, header);
      switch (static_cast<WireType>(tag & 7)) {
        case WireType::kVarint: {
          uint64_t value = 0;
          if (!cursor_->ReadVarint(&value)) {
            return Malformed(absl::StrCat("bad varint at byte ", cursor_->position()));
          }
          AppendVarint(value, header);
          break;
        }
        case WireType::kFixed64:
          status = CopyBytes(8, end, header);
          break;
        case WireType::kFixed32:
          status = CopyBytes(4, end, header);
          break;
        case WireType::kLengthDelimited:
          status = ExtractDelimited(message, static_cast<uint32_t>(tag >> 3), end, depth, header);
          break;
        default:
          return Malformed(absl::StrCat("wire type ", tag & 7, " at byte ", cursor_->position()));
      }
      if (!status.ok()) return status;
    }
    if (cursor_->position() != end) {
      return Malformed(absl::StrCat("a field runs past the end of its message at byte ", end));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ExtractDelimited(const MessageFields* message, uint32_t field_number, uint64_t end,
                                int depth, std::string* header) {
    uint64_t length = 0;
    if (!cursor_->ReadVarint(&length) || cursor_->position() > end ||
        length > end - cursor_->position()) {
      return Malformed(absl::StrCat("the length of field ", field_number, " at byte ",
                                    cursor_->position(), " runs past the end of its message"));
    }
    const MessageFields::Field field =
        message != nullptr ? message->at(field_number) : MessageFields::Field();
    switch (field.kind) {
      case FieldKind::kOpaque:
        AppendVarint(length, header);
        return CopyBytes(length, end, header);
      case FieldKind::kTensorData: {
        if (length == 0) {
          AppendVarint(0, header);
          return absl::OkStatus();
        }
        AppendVarint(kMarkerBytes, header);
        AppendMarker(static_cast<uint32_t>(payloads_->size()), header);
        Payload& payload = payloads_->emplace_back();
        payload.size_bytes = static_cast<int64_t>(length);
        cursor_->Take(length,
                      [&](absl::Span<const std::byte> run) { payload.runs.push_back(run); });
        return CheckHeaderSize(0, *header);
      }
      case FieldKind::kMessage: {
        std::string child_header;
        absl::Status status =
            Extract(field.message, cursor_->position() + length, depth + 1, &child_header);
        if (!status.ok()) return status;
        AppendVarint(child_header.size(), header);
        header->append(child_header);
        return CheckHeaderSize(0, *header);
      }
    }
    return absl::InternalError("unreachable field kind");
  }

  absl::Status CopyBytes(uint64_t count, uint64_t end, std::string* header) {
    if (count > end - std::min(end, cursor_->position())) {
      return Malformed(absl::StrCat("a field at byte ", cursor_->position(), " is cut short"));
    }
    if (absl::Status status = CheckHeaderSize(count, *header); !status.ok()) return status;
    cursor_->Take(count, [&](absl::Span<const std::byte> run) {
      header->append(reinterpret_cast<const char*>(run.data()), run.size());
    });
    return absl::OkStatus();
  }

  static absl::Status CheckHeaderSize(uint64_t more, const std::string& header) {
    if (header.size() + more <= ReceivedMessage::kMaxHeaderBytes) return absl::OkStatus();
    return Malformed(absl::StrCat("fields other than tensor data take ", header.size() + more,
                                  " bytes > limit ", ReceivedMessage::kMaxHeaderBytes));
  }

  SliceCursor* cursor_;
  std::vector<Payload>* payloads_;
};

}  // namespace

void Payload::CopyTo(std::byte* destination) const {
  for (const absl::Span<const std::byte> run : runs) {
    std::memcpy(destination, run.data(), run.size());
    destination += run.size();
  }
}

absl::Status ReceivedMessage::Parse(const grpc::ByteBuffer& buffer,
                                    google::protobuf::Message* header) {
  slices_.clear();
  payloads_.clear();
  if (buffer.Valid()) {
    if (grpc::Status status = buffer.Dump(&slices_); !status.ok()) {
      return absl::InternalError(
          absl::StrCat("gRPC could not hand over its slices: ", status.error_message()));
    }
  }
  SliceCursor cursor(slices_);
  std::string header_bytes;
  absl::Status status =
      HeaderExtractor(&cursor, &payloads_)
          .Extract(MessageFields::Of(header->GetDescriptor()), cursor.total(), 0, &header_bytes);
  if (!status.ok()) return status;
  if (!header->ParseFromString(header_bytes)) {
    return Malformed(absl::StrCat("protobuf could not read it as ", header->GetTypeName()));
  }
  return absl::OkStatus();
}

const Payload& ReceivedMessage::payload(const std::string& marker) const {
  const int64_t index = MarkerIndex(marker);
  if (index < 0 || index >= static_cast<int64_t>(payloads_.size())) return empty_;
  return payloads_[static_cast<size_t>(index)];
}

}  // namespace norm::wire
