#include "proto/codec/wire_format.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
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

int64_t MarkerIndex(absl::string_view marker) {
  if (marker.size() != kMarkerBytes) return -1;
  uint32_t index = 0;
  for (size_t i = 0; i < kMarkerBytes; ++i) {
    index |= static_cast<uint32_t>(static_cast<uint8_t>(marker[i])) << (8 * i);
  }
  return index;
}

/// Every type of the files that tensors travel in.
class MessageFields::Registry {
 public:
  Registry() {
    const google::protobuf::FileDescriptor* file = norm::v1::StreamRequest::descriptor()->file();
    for (int i = 0; i < file->message_type_count(); ++i) Add(file->message_type(i));
  }

  const MessageFields* Find(const google::protobuf::Descriptor* message) const {
    const auto found = types_.find(message);
    return found == types_.end() ? nullptr : found->second.get();
  }

 private:
  const MessageFields* Add(const google::protobuf::Descriptor* message) {
    const auto [at, is_new] = types_.try_emplace(message);
    if (!is_new) return at->second.get();
    auto fields = std::make_unique<MessageFields>();
    for (int i = 0; i < message->field_count(); ++i) {
      const google::protobuf::FieldDescriptor& field = *message->field(i);
      const Field held = FieldOf(*message, field);
      if (held.kind == FieldKind::kOpaque) continue;
      const auto number = static_cast<size_t>(field.number());
      fields->fields_.resize(std::max(fields->fields_.size(), number + 1));
      fields->fields_[number] = held;
    }
    if (fields->fields_.empty()) return nullptr;
    return (types_[message] = std::move(fields)).get();
  }

  Field FieldOf(const google::protobuf::Descriptor& message,
                const google::protobuf::FieldDescriptor& field) {
    using google::protobuf::FieldDescriptor;
    const bool holds_tensors = &message == norm::v1::Tensor::descriptor() ||
                               &message == norm::v1::InputRows::descriptor() ||
                               &message == norm::v1::OutputRows::descriptor();
    if (holds_tensors && field.type() == FieldDescriptor::TYPE_BYTES) {
      return {FieldKind::kTensorData, nullptr};
    }
    if (field.type() != FieldDescriptor::TYPE_MESSAGE) return {};
    const MessageFields* child = Add(field.message_type());
    return child == nullptr ? Field() : Field{FieldKind::kMessage, child};
  }

  absl::flat_hash_map<const google::protobuf::Descriptor*, std::unique_ptr<MessageFields>> types_;
};

const MessageFields* MessageFields::Of(const google::protobuf::Descriptor* message) {
  static const Registry registry;
  return registry.Find(message);
}

}  // namespace norm::wire
