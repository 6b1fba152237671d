#include "proto/codec/wire_format.h"

#include "norm/v1/normalization.pb.h"
#include "norm/v1/tensor.pb.h"

namespace norm::wire {

void AppendVarint(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

void AppendMarker(uint32_t index, std::string* out) {
  for (size_t i = 0; i < kMarkerBytes; ++i) out->push_back(static_cast<char>(index >> (8 * i)));
}

int64_t MarkerIndex(const std::string& marker) {
  if (marker.size() != kMarkerBytes) return -1;
  uint32_t index = 0;
  for (size_t i = 0; i < kMarkerBytes; ++i) {
    index |= static_cast<uint32_t>(static_cast<uint8_t>(marker[i])) << (8 * i);
  }
  return index;
}

FieldKind KindOfField(const google::protobuf::Descriptor* message, uint32_t field_number,
                      const google::protobuf::Descriptor** child) {
  *child = nullptr;
  if (message == nullptr) return FieldKind::kOpaque;
  if (message == norm::v1::Tensor::descriptor()) {
    return field_number == norm::v1::Tensor::kDataFieldNumber ? FieldKind::kTensorData
                                                              : FieldKind::kOpaque;
  }
  const google::protobuf::FieldDescriptor* field =
      message->FindFieldByNumber(static_cast<int>(field_number));
  if (field == nullptr) return FieldKind::kOpaque;
  if (message == norm::v1::InputRows::descriptor() ||
      message == norm::v1::OutputRows::descriptor()) {
    return field->type() == google::protobuf::FieldDescriptor::TYPE_BYTES ? FieldKind::kTensorData
                                                                          : FieldKind::kOpaque;
  }
  if (field->type() != google::protobuf::FieldDescriptor::TYPE_MESSAGE) return FieldKind::kOpaque;
  *child = field->message_type();
  return FieldKind::kMessage;
}

}  // namespace norm::wire
